#include "codec/gemm/pack.h"

#include <algorithm>

#include "codec/formats/loops.h"

namespace cgx::gemm {
namespace {

// Rows of b, whose values lie next to each other.
void pack_lines(Matrix<const float> b, Range terms, Range columns, float* to) {
  for (size_t k = 0; k < terms.count; ++k) {
    const float* line = b.at(terms.first + k, columns.first);
    for (size_t j = 0; j < columns.count; j += kLanes) {
      float* part = to + j * terms.count + k * kLanes;
      if (columns.count - j >= kLanes) {
        __builtin_memcpy(part, line + j, kLanes * sizeof(float));
      } else {
        std::copy(line + j, line + columns.count, part);
      }
    }
  }
}

// A few terms of each column at a time: of a transposed matrix they lie next to each other.
void pack_panel(Matrix<const float> b, Range terms, Range columns, float* to) {
  for (size_t first = 0; first < terms.count; first += kLanes) {
    const size_t last = std::min(first + kLanes, terms.count);
    for (size_t j = 0; j < columns.count; ++j) {
      const float* from = b.at(terms.first, columns.first + j);
      for (size_t k = first; k < last; ++k) {
        to[k * kLanes + j] = from[static_cast<ptrdiff_t>(k) * b.row];
      }
    }
  }
}

}  // namespace

void pack_columns(Matrix<const float> b, Range terms, Range columns, float* to) {
  const size_t last = columns.count / kLanes * kLanes;
  if (last < columns.count) std::fill_n(to + last * terms.count, terms.count * kLanes, 0.0f);
  if (b.column == 1) return pack_lines(b, terms, columns, to);
  for (size_t j = 0; j < columns.count; j += kLanes) {
    const Range panel{columns.first + j, std::min(kLanes, columns.count - j)};
    pack_panel(b, terms, panel, to + j * terms.count);
  }
}

void pack_rows(Matrix<const float> a, Range rows, Range terms, bool single, float* to) {
  const size_t whole = single && rows.count % kRows == 1 ? rows.count - 1 : rows.count;
  if (rows.count % kRows != 0) std::fill_n(to, terms.count * rounded_up(whole, kRows), 0.0f);
  const auto copy = [&](size_t r, size_t k) {
    const size_t width = r < whole ? kRows : 1;
    float* const group = to + r / kRows * kRows * terms.count;
    group[k * width + r % kRows] = *a.at(rows.first + r, terms.first + k);
  };
  if (a.row == 1) {
    for (size_t k = 0; k < terms.count; ++k) {
      for (size_t r = 0; r < rows.count; ++r) copy(r, k);
    }
  } else {
    for (size_t r = 0; r < rows.count; ++r) {
      for (size_t k = 0; k < terms.count; ++k) copy(r, k);
    }
  }
}

bool all_tame(const float* x, size_t n) { return as_bits(formats::greatest(x, n)) < kWild; }

}  // namespace cgx::gemm
