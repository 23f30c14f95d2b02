// What the frame of a payload that is one frame holds (codec/bounded/whole.h).
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

/// The values of a tensor as words of one grid, each of as few bytes as the greatest needs, and others:
/// NaN, infinities, -0, and what has no word that keeps the bound. Nothing: the bound has no grid, others
/// are more than one in kWordsOf, or a word is longer than 32 bits.
inline constexpr size_t kWordsOf = 64;
std::optional<WholeContent> words_of_all(const Maps& maps, std::span<const std::byte> values);

/// The values of a tensor as the most frequent one and others. Nothing: these are more than one in
/// kOthersOf.
inline constexpr size_t kOthersOf = 1024;
std::optional<WholeContent> mostly_of_all(DType element, std::span<const std::byte> values);

/// Appends a value with these bits, and those of n that have others, with their places. False: these are
/// more than `most`.
bool append_mostly(DType element, const std::byte* x, size_t n, uint64_t bits, size_t most,
                   std::vector<std::byte>& out);

}  // namespace cgx::bounded
