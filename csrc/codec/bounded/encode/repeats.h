// Whether values, or bytes of them, are there again: rows of a table that are drawn again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cgx::bounded {

/// Bytes of a part of a tensor by which this is seen, at most.
inline constexpr size_t kRepeatsSeen = size_t{1} << 20;

/// True: at least one in twenty of some places in these bytes is followed by 32 bytes that are there
/// before, too. each: bytes of a value; places are multiples of it.
bool repeats(std::span<const std::byte> bytes, size_t each);

/// Of numbers: how many differ from all before them; the one that is there most often, and how often.
struct Tally {
  size_t distinct = 0;
  uint64_t most = 0;
  size_t count = 0;
};

/// For samples: it takes up to 6 times their room.
Tally tally_of(std::span<const uint64_t> numbers);

/// Whether each number repeats a pattern of bits, as the binary digits of 1/3 do: thirds, or means of
/// 30 days. Looks at eight neighbours at a time.
bool bits_repeat(std::span<const uint64_t> numbers);

}  // namespace cgx::bounded
