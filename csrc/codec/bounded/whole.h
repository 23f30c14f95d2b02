// How the frame of a payload that is one frame holds the values of a tensor:
//
//     0    values   their bytes
//     1    words    whole numbers in two's complement, of which each stands for a value of a grid
//                   (maps/grid.h), then others
//     2    mostly   one value, then others
//
// Others are values at places that ascend, as in a block of map 9. This byte is in the payload's header;
// of words with the bytes of each, 1, 2 or 4, and the step, float64; of both with the bytes of the others.
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
  uint64_t others = 0;    // bytes of the others, with the one value of kMostly

  /// What the payload's header says of it.
  void write(std::vector<std::byte>& out) const;
  /// Takes that from the beginning of `in`. PayloadError.
  static Whole read(std::span<const std::byte>& in);

  /// Bytes that the frame of n values holds. PayloadError: the tensor's bound does not allow this form or
  /// step, or the others take more bytes than all values and a few.
  size_t content(const Maps& maps, uint64_t n) const;
  /// Writes the values [first, last) of n to x, aligned as their type is. content: of content() bytes.
  /// PayloadError: a word or a bool is none, or the list of others is cut, goes on, or leaves the tensor.
  void decode(const Maps& maps, std::span<const std::byte> content, uint64_t n, uint64_t first,
              uint64_t last, std::byte* x) const;
};

/// Writes the values [first, last) of n to x: one value, then others. PayloadError.
void decode_mostly(DType element, std::span<const std::byte> in, uint64_t n, uint64_t first,
                   uint64_t last, std::byte* x);
/// PayloadError: one of n values of that type is a bool and neither 0 nor 1.
void check_bools(DType element, const std::byte* x, size_t n);

}  // namespace cgx::bounded
