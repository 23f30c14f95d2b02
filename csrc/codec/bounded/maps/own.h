// Exact maps that a block brings with it: a palette of the values that it has, and multiples of a
// unit, such as prices in cents or weights that were dequantized row by row.
//
// What a map needs stands at the end of the block's content:
//
//     palette    how many values there are, 1 to 2^16, and their places among all numbers of the type's
//                size in ascending order: the first one, and then the differences less 1. A word is the
//                number of a value.
//     multiples  a byte: 0 products, value = word * unit; 1 quotients, value = word / unit; both
//                in float64, rounded to the type. The width of rows that have a unit each, and where in
//                its row the block begins; a width of 0: all values have the same. The units, float64.
//
// Numbers are those of bytes.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/bounded/element.h"
#include "codec/bounded/kinds.h"

namespace cgx::bounded {

/// The place of a value's bits in the order of all values of their type, as an unsigned number.
uint64_t place_among_all(DType element, uint64_t bits);
uint64_t bits_at_place(DType element, uint64_t place);

struct Palette {
  static constexpr size_t kMost = 4096;  // that a writer makes
  std::vector<uint64_t> places;          // ascending

  /// The number of the value with these bits; -1: it is not there.
  int64_t number_of(DType element, uint64_t bits) const;
  void write(std::vector<std::byte>& out) const;
  static Palette read(DType element, std::span<const std::byte> in);
};

struct Multiples {
  bool quotients = false;
  uint32_t width = 0, start = 0;
  std::vector<double> units;

  double unit_of(size_t value) const { return units[width == 0 ? 0 : (start + value) / width]; }
  /// What a word stands for, T float or double.
  template <typename T>
  T value_of(double word, double unit) const {
    return static_cast<T>(quotients ? word / unit : word * unit);
  }
  void write(std::vector<std::byte>& out) const;
  /// n: values of the block.
  static Multiples read(size_t n, std::span<const std::byte> in);
};

}  // namespace cgx::bounded
