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

/// How many of these numbers differ from all others before them. For samples: it takes up to 4 times their room.
size_t distinct_of(std::span<const uint64_t> numbers);

}  // namespace cgx::bounded
