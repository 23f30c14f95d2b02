// Loops of matrix products, by SIMD level: the sums of a few rows and 16 columns go through K together.
//
// Operands are packed: a[k][row] for 4 rows or 1, b[k][column] for kLanes columns. Sums, and with Kahan's
// rule what they have lost, lie in memory with kTile values a row.
#pragma once

#include <cstddef>

#include "codec/gemm/hopper.h"
#include "codec/gemm/rounding.h"
#include "codec/ops/by_level.h"

namespace cgx::gemm {

inline constexpr size_t kLanes = 16, kRows = 4, kTile = 64;

struct Kernels {
  /// Adds `depth` products to the sums of kRows rows, or of one. `lost`: not read without Kahan's rule.
  /// `row` may be null: kRows rows then take no longer.
  using Run = void (*)(const Constants& constants, const float* a, const float* b, size_t depth,
                       float* sums, float* lost);
  Run rows, row;
  /// Adds numbers of the format to the sums of so many rows.
  void (*add)(const Constants& constants, const float* numbers, size_t rows, float* sums,
              float* lost);
};

struct Loops {
  Kernels of[kWays][2];  // by Way and Kahan's rule
};

/// The loops of the level in force. ConfigError: CGX_CPU_LEVEL is bad.
const Loops& loops();

}  // namespace cgx::gemm
