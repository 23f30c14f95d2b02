// Quantization by a table: the borders that are below a value give a code, and a code gives a level.
// The codes of n values are a stream of bits, lowest first, bits() each; zeros fill the last byte.
//
//   code of x   how many borders are below x: a value that equals a border gets the lower code.
//               -Inf gets the first code, +Inf and NaN the last. Values are compared with the borders
//               exactly, also those of 16 and of 32 bits.
//   decode      y = level[code]; a code that the table lacks (bits() may allow some) gives the last level
//   multiply    y = x * level[code], rounded once to float32 and then to the type; NaN as in base/nan.h
//
// A border whose own value shall get the upper code is given as nextafter(border, -HUGE_VAL).
//
// Values are float32, float16, bfloat16 or, by overloads, float64, whose levels stay in float64; others
// have the levels rounded to float32. Results do not depend on the SIMD level. Pointers to values and
// codes have any alignment; input and output do not overlap, but y may be x of multiply(). A part may
// start at any multiple of 8 values, where codes begin a byte. Pure functions, thread-safe. Errors:
// ConfigError for another dtype, and where CGX_CPU_LEVEL is bad.
//
// The codec `rotated` shares the search and the packing, not these loops: it searches magnitudes, whose
// thresholds and levels are half as many, and sums products with the levels while they are in registers.
#pragma once

#include <cstddef>
#include <vector>

#include "base/dtype.h"
#include "codec/levels/gpu/call.h"
#include "codec/levels/loops.h"

namespace cgx {

class LevelTable {
 public:
  /// `levels`: 2 to 256, in the order of their codes, finite in float32. `borders`: one less, finite,
  /// rising. Of a power of two of levels there may be more borders, up to 255: the levels then take
  /// turns, and the code of x is the number of borders below it modulo that power. magnitude: borders are compared with |x|. Errors: ConfigError that names what is wrong.
  LevelTable(const std::vector<double>& borders, const std::vector<double>& levels,
             bool magnitude = false);

  /// Of a code: ceil(log2(levels)).
  int bits() const { return table_.bits; }
  /// Of n codes.
  size_t code_bytes(size_t n) const;

  /// Returns whether one of the values is NaN.
  bool encode(const void* x, DType dtype, size_t n, std::byte* codes) const;
  bool encode(const double* x, size_t n, std::byte* codes) const;

  void decode(const std::byte* codes, size_t n, void* y, DType dtype) const;
  void decode(const std::byte* codes, size_t n, double* y) const;

  void multiply(const std::byte* codes, const void* x, size_t n, void* y, DType dtype) const;
  void multiply(const std::byte* codes, const double* x, size_t n, double* y) const;

  /// For kernels. Errors: ConfigError for more than 16 levels.
  levels::on_gpu::Table on_gpu() const;

 private:
  levels::Arrays table_;
};

}  // namespace cgx
