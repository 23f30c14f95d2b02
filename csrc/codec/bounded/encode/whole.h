// Makes the content of the frame of a payload that is one frame (codec/bounded/whole.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/bounded/whole.h"

namespace cgx::bounded {

struct WholeContent {
  Whole whole;
  std::vector<std::byte> content;
};

/// Writes the values of a tensor as words of one grid. All words have as many bytes as the longest needs.
/// NaN, infinities, -0 and values that no word represents within the bound go to the list of others.
/// Returns nothing if the bound has no grid, if more than one value in kWordsOf goes to the list, or if a
/// word needs more than 32 bits.
inline constexpr size_t kWordsOf = 64;
std::optional<WholeContent> words_of_all(const Maps& maps, std::span<const std::byte> values);

/// Writes the most frequent value of a tensor, then lists all values that differ from it. Returns nothing
/// if more than one value in kOthersOf differs.
inline constexpr size_t kOthersOf = 1024;
std::optional<WholeContent> mostly_of_all(DType element, std::span<const std::byte> values);

/// Appends the value with these bits, then each of the n values at x that differs from it, with its place.
/// Returns false if more than `most` values differ.
bool append_mostly(DType element, const std::byte* x, size_t n, uint64_t bits, size_t most,
                   std::vector<std::byte>& out);

}  // namespace cgx::bounded
