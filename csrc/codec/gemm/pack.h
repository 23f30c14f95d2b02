// Operands of a matrix product as its loops read them (loops.h), from memory of any strides.
#pragma once

#include <cstddef>

#include "codec/gemm/loops.h"

namespace cgx::gemm {

/// Values of a matrix on the host, with so many values from one row, and one column, to the next.
template <typename Value>
struct Matrix {
  Value* values;
  ptrdiff_t row, column;

  Value* at(size_t r, size_t c) const {
    return values + static_cast<ptrdiff_t>(r) * row + static_cast<ptrdiff_t>(c) * column;
  }
};

/// Some rows, columns or terms.
struct Range {
  size_t first, count;
  bool operator==(const Range&) const = default;
};

constexpr size_t rounded_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/// Panels of kLanes columns of b, one behind the other: to[k][column]. Zeros take the place of missing
/// columns.
void pack_columns(Matrix<const float> b, Range terms, Range columns, float* to);

/// Groups of kRows rows of a, one behind the other: to[k][row]. Zeros take the place of missing rows.
/// single: a last group of one row has to[k] alone.
void pack_rows(Matrix<const float> a, Range rows, Range terms, bool single, float* to);

/// Whether all n values are tame (rounding.h). ConfigError: CGX_CPU_LEVEL is bad.
bool all_tame(const float* x, size_t n);

}  // namespace cgx::gemm
