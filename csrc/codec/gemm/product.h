// Products of matrices whose sums are made in a format of numbers, term by term.
//
// The product of a row and a column has the terms p_k = cast(a_k b_k). Each product and each sum is rounded
// to float32, then cast to the format:
//
//   plain    s = cast(s + p_k) for k = 0, 1 ...; from s = 0
//   Kahan    y = cast(p_k - c), t = cast(s + y), c = cast(cast(t - s) - y), s = t; from s = c = 0
//   blocks   of every `block` terms such a sum by itself; the same rule then adds the blocks' sums, in order
//   Hopper   see hopper.h
//
// Sources: Kahan's rule in a format: CPD (arXiv 1911.08907); blocks: Wang et al., NeurIPS 2018, "Training
// DNNs with 8-bit floating point numbers", chunk-based accumulation.
//
// Results are the same bits on every SIMD level, and each depends on its row and its column alone. NaN is
// the one of base/nan.h.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "codec/gemm/loops.h"
#include "codec/gemm/pack.h"

namespace cgx::gemm {

/// How sums are made.
struct Sums {
  Constants constants;
  Way way, general;  // of tame operands, and of all others
  bool kahan = false;
  size_t block = 0;  // terms; 0: all of them
};

/// kind: not kStochastic, which needs random numbers, and not kScale, which has no zero.
Sums sums_of(formats::Kind kind, const formats::Rule<float>& rule, bool kahan, size_t block);
Sums hopper_sums();

struct Shape {
  size_t rows, depth, columns;

  /// The result is computed in tiles of kTile x kTile values, which do not depend on each other.
  size_t row_tiles() const { return (rows + kTile - 1) / kTile; }
  size_t tiles() const { return row_tiles() * ((columns + kTile - 1) / kTile); }
};

/// Computes tiles, in memory of its own. Not thread-safe: one a thread.
class Multiplier {
 public:
  /// ConfigError: CGX_CPU_LEVEL is bad.
  Multiplier(const Sums& sums, const Shape& shape);

  /// Writes `count` tiles of y = a b from number `first` on.
  void run(Matrix<const float> a, Matrix<const float> b, size_t first, size_t count,
           Matrix<float> y);

 private:
  void run_tile(Range rows, Range columns);
  void run_rows(size_t row, size_t width, Range terms, Range columns);
  void run_panel(const Kernels& kernels, const float* a, const float* b, size_t width, Range terms,
                 size_t place);
  const Kernels& kernels_of(Way way) const {
    return loops_.of[static_cast<size_t>(way)][sums_.kahan ? 1 : 0];
  }
  void write(Range rows, Range columns, Matrix<float> y) const;

  const Sums sums_;
  const Shape shape_;
  const Loops& loops_;
  Matrix<const float> a_{}, b_{};
  std::vector<float> packed_a_, packed_b_;
  // With kTile values a row: the sums of terms; those of blocks; what Kahan's rule has lost of each.
  std::vector<float> terms_, terms_lost_, blocks_, blocks_lost_;
  Range packed_terms_{}, packed_columns_{};  // of packed_b_
  bool single_rows_, tame_columns_ = true;
  // Of kRows rows each: whether an operand was not tame, so that sums may be infinite or NaN.
  std::array<bool, kTile / kRows> wild_{};
};

}  // namespace cgx::gemm
