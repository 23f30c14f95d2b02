#include "codec/gemm/product.h"

#include <algorithm>

#include "base/float_mode.h"
#include "base/nan.h"

namespace cgx::gemm {
namespace {

// Terms whose operands are packed at a time: at most 128 KiB each.
constexpr size_t kChunk = 512;
static_assert(kChunk % kHopperRun == 0 && kHopperRun % kHopperStep == 0);

}  // namespace

Sums sums_of(formats::Kind kind, const formats::Rule<float>& rule, bool kahan, size_t block) {
  return {constants_of(kind, rule), way_of(kind, rule), general_way_of(kind), kahan, block};
}

Sums hopper_sums() { return {{}, Way::kHopper, Way::kHopper, false, kHopperRun}; }

Multiplier::Multiplier(const Sums& sums, const Shape& shape)
    : sums_(sums), shape_(shape), loops_(loops()) {
  const size_t terms = std::min(shape.depth, kChunk);
  packed_b_.resize(terms * rounded_up(std::min(shape.columns, kTile), kLanes));
  const size_t rows = rounded_up(std::min(shape.rows, kTile), kRows);
  packed_a_.resize(terms * rows);
  single_rows_ = kernels_of(sums.way).row != nullptr;
  for (auto* state : {&terms_, &terms_lost_, &blocks_, &blocks_lost_}) state->resize(rows * kTile);
}

void Multiplier::run(Matrix<const float> a, Matrix<const float> b, size_t first, size_t count,
                     Matrix<float> y) {
  const FloatMode mode;
  a_ = a;
  b_ = b;
  packed_terms_ = {};
  for (size_t tile = first; tile < first + count; ++tile) {
    const size_t row = tile % shape_.row_tiles() * kTile;
    const size_t column = tile / shape_.row_tiles() * kTile;
    const Range rows{row, std::min(kTile, shape_.rows - row)};
    const Range columns{column, std::min(kTile, shape_.columns - column)};
    run_tile(rows, columns);
    write(rows, columns, y);
  }
}

void Multiplier::run_tile(Range rows, Range columns) {
  for (auto* state : {&terms_, &terms_lost_, &blocks_, &blocks_lost_}) {
    std::fill(state->begin(), state->end(), 0.0f);
  }
  wild_.fill(false);
  for (size_t k = 0; k < shape_.depth; k += kChunk) {
    const Range terms{k, std::min(kChunk, shape_.depth - k)};
    if (packed_terms_ != terms || packed_columns_ != columns) {
      pack_columns(b_, terms, columns, packed_b_.data());
      packed_terms_ = terms;
      packed_columns_ = columns;
      const size_t values = terms.count * rounded_up(columns.count, kLanes);
      tame_columns_ = all_tame(packed_b_.data(), values);
    }
    pack_rows(a_, rows, terms, single_rows_, packed_a_.data());
    for (size_t r = 0; r < rows.count; r += kRows) {
      run_rows(r, single_rows_ && rows.count - r == 1 ? 1 : kRows, terms, columns);
    }
  }
}

void Multiplier::run_rows(size_t row, size_t width, Range terms, Range columns) {
  const float* a = packed_a_.data() + row * terms.count;
  bool& wild = wild_[row / kRows];
  wild = wild || !tame_columns_ || !all_tame(a, terms.count * width);
  const Kernels& kernels = kernels_of(wild ? sums_.general : sums_.way);
  for (size_t j = 0; j < columns.count; j += kLanes) {
    const float* b = packed_b_.data() + j * terms.count;
    run_panel(kernels, a, b, width, terms, row * kTile + j);
  }
}

void Multiplier::run_panel(const Kernels& kernels, const float* a, const float* b, size_t width,
                           Range terms, size_t place) {
  const auto run = width == 1 ? kernels.row : kernels.rows;
  float *sums = terms_.data() + place, *lost = terms_lost_.data() + place;
  if (sums_.block == 0) return run(sums_.constants, a, b, terms.count, sums, lost);
  for (size_t k = 0; k < terms.count;) {
    const size_t done = (terms.first + k) % sums_.block;
    const size_t n = std::min(terms.count - k, sums_.block - done);
    run(sums_.constants, a + k * width, b + k * kLanes, n, sums, lost);
    k += n;
    if (done + n < sums_.block && terms.first + k < shape_.depth) continue;
    kernels.add(sums_.constants, sums, width, blocks_.data() + place, blocks_lost_.data() + place);
    for (size_t r = 0; r < width; ++r) {
      std::fill_n(sums + r * kTile, kLanes, 0.0f);
      std::fill_n(lost + r * kTile, kLanes, 0.0f);
    }
  }
}

void Multiplier::write(Range rows, Range columns, Matrix<float> y) const {
  const float* sums = sums_.block == 0 ? terms_.data() : blocks_.data();
  for (size_t r = 0; r < rows.count; ++r) {
    for (size_t c = 0; c < columns.count; ++c) {
      *y.at(rows.first + r, columns.first + c) = one_nan(sums[r * kTile + c]);
    }
  }
}

}  // namespace cgx::gemm
