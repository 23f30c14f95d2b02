// Values as bytes for the entropy coder, which finds values that are there again: as they are, as planes
// of bytes, or as planes of bits. The lowest byte, and its lowest bit, come first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx::bounded {

enum class Rearranged : uint8_t { kNot = 0, kBytes = 1, kBits = 2 };
inline constexpr int kRearranged = 3;

/// Planes of bits are whole bytes of them: the last n mod 8 values follow as they are.
///
/// n values of `each` bytes; in and out do not overlap.
void rearrange(Rearranged way, const std::byte* in, size_t n, size_t each, std::byte* out);
void arrange_back(Rearranged way, const std::byte* in, size_t n, size_t each, std::byte* out);

}  // namespace cgx::bounded
