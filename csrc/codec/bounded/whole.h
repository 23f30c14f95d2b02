// How the frame of a payload that is one frame holds the values of a tensor:
//
//     0    values   their bytes
//     1    words    whole numbers in two's complement, of which each stands for a value of a grid
//                   (maps/grid.h), then others
//     2    mostly   one value, then others
//
// "Others" is a list of values that replace those at their places, written as in a block of map 9. The
// payload's header holds the number of the form. For words, the bytes of a word (1, 2 or 4) and the step
// (float64) follow it; for words and for mostly, the length of the list in bytes comes last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/bounded/maps/maps.h"

namespace cgx::bounded {

struct Whole {
  enum class Form : uint8_t { kValues = 0, kWords = 1, kMostly = 2 };
  Form form = Form::kValues;
  size_t word_bytes = 0;  // of kWords
  double step = 0;        // of kWords
  uint64_t others = 0;    // bytes of the list of others; of kMostly, with the one value before it

  /// Appends this to a payload's header.
  void write(std::vector<std::byte>& out) const;
  /// Reads what write() appended, and moves `in` behind it. PayloadError.
  static Whole read(std::span<const std::byte>& in);

  /// Returns the length of the frame's content for n values. PayloadError: the bound does not allow this
  /// form or this step, or the list of others is longer than all n values and 18 bytes.
  size_t content(const Maps& maps, uint64_t n) const;
  /// Writes the values [first, last) of n to x, aligned as their type is. content: of content() bytes.
  /// PayloadError: a word stands for no finite value, a bool is neither 0 nor 1, the list of others is cut
  /// or too long, or one of its places is outside of the tensor.
  void decode(const Maps& maps, std::span<const std::byte> content, uint64_t n, uint64_t first,
              uint64_t last, std::byte* x) const;
};

/// Writes the values [first, last) of n to x. in: one value, then the list of others. PayloadError.
void decode_mostly(DType element, std::span<const std::byte> in, uint64_t n, uint64_t first,
                   uint64_t last, std::byte* x);
/// Throws PayloadError if the type is bool and one of the n values is neither 0 nor 1.
void check_bools(DType element, const std::byte* x, size_t n);

}  // namespace cgx::bounded
