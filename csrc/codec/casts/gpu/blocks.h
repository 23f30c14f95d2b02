// Blocks on a GPU: a team of threads takes a block, eight values of a row of it at a time. It reads them
// twice: for the greatest magnitude, and to cast them.
#pragma once

#include "codec/casts/gpu/round.h"

namespace cgx::casting::on_gpu {

struct BlocksMemory {
  double most[gpu::kThreads];   // greatest magnitudes: of a thread's values, then of more
  double scale[gpu::kThreads];  // by team
};

/// A block's place in the tensor.
struct Place {
  uint64_t first;
  uint32_t columns, rows;  // values of a row of the block, and its rows
};

CGX_HD Place place_of(const Grid& grid, uint64_t block) {
  const uint64_t strip = block / grid.across, column = block % grid.across * grid.size;
  const uint64_t plane = strip / grid.strips, row = strip % grid.strips * grid.block_rows;
  const uint64_t columns = grid.columns - column, rows = grid.rows - row;
  return {(plane * grid.rows + row) * grid.columns + column,
          columns < grid.size ? static_cast<uint32_t>(columns) : grid.size,
          rows < grid.block_rows ? static_cast<uint32_t>(rows) : grid.block_rows};
}

/// Calls work(first, n) for each group of at most eight values of a block that is this lane's.
template <typename Work>
CGX_HD void each_group(const Grid& grid, const Place& place, uint32_t lane, uint32_t lanes,
                       const Work& work) {
  const uint32_t groups = (place.columns + gpu::kGroup - 1) / gpu::kGroup;
  CGX_LOOP for (uint32_t g = lane; g < groups * place.rows; g += lanes) {
    const uint32_t row = g / groups, column = g % groups * gpu::kGroup;
    const uint32_t left = place.columns - column;
    work(place.first + row * grid.columns + column, left < gpu::kGroup ? left : gpu::kGroup);
  }
}

/// As a number; of a NaN it is one.
template <typename Real>
CGX_HD double greatest_of(const Call& call, const Place& place, uint32_t lane) {
  using Type = formats::WordOf<Real>;
  typename Type::Word most = 0;
  each_group(call.grid, place, lane, call.lanes, [&](uint64_t first, uint32_t n) {
    gpu::Eight<Real> eight;
    load_eight(call.x, first, n, call.type, eight);
    CGX_UNROLL for (uint32_t k = 0; k < gpu::kGroup; ++k) {
      const typename Type::Word u = as_bits(eight.values[k]) & ~Type::kSign;
      most = u > most ? u : most;
    }
  });
  return static_cast<double>(formats::real_of_word(most));
}

/// NaN counts as the greatest.
CGX_HD double greater(double a, double b) { return a > b || a != a ? a : b; }

CGX_HD double scale_of(const Call& call, double amax) {
  const double infinity = wide_from_bits(formats::WordOf<double>::kInfinity);
  const double all = call.amax != nullptr ? *call.amax : 0.0;
  if (!(amax < infinity) || !(all < infinity)) return wide_from_bits(kWideNan);
  if (static_cast<formats::Scale>(call.scale) == formats::Scale::kE8m0) {
    return static_cast<double>(
        formats::power_of_two(formats::power_of_scale(call.scale_rule, amax)));
  }
  const float scale = formats::divisor_of(call.scale_rule, amax);
  if (call.amax == nullptr) return static_cast<double>(scale);
  const float of_tensor = formats::scale_of_tensor(call.scale_rule, all);
  return static_cast<double>(
      formats::e4m3_scale(call.scale_rule, call.e4m3, scale, of_tensor, amax));
}

template <typename Real>
CGX_HD void cast_block(const Call& call, const Place& place, uint32_t lane, double scale) {
  const Real own = static_cast<Real>(scale);
  const Real largest = static_cast<Real>(call.scale_rule.largest) * own;
  uint32_t beyond = 0;
  each_group(call.grid, place, lane, call.lanes, [&](uint64_t first, uint32_t n) {
    gpu::Eight<Real> eight;
    load_eight(call.x, first, n, call.type, eight);
    CGX_UNROLL for (uint32_t k = 0; k < gpu::kGroup; ++k) {
      const Real x = eight.values[k];
      beyond += k < n && is_beyond(x, -largest, largest) ? 1 : 0;
      eight.values[k] = rounded(call, x / own, first + k) * own;
    }
    store_eight(call.y, first, n, call.type, eight);
  });
  if (call.beyond != nullptr) add_at_once(call.beyond, beyond);
}

/// Part number i of the call: kThreads / lanes blocks.
template <typename Block>
CGX_HD void blocks_stage(Block& block, BlocksMemory& memory, const Call& call, uint64_t i) {
  const uint32_t lanes = call.lanes, teams = gpu::kThreads / lanes;
  const bool wide = call.type == gpu::kWideType;
  block.phase([&](uint32_t t) {
    const uint64_t number = i * teams + t / lanes;
    memory.most[t] = 0;
    if (number >= call.blocks) return;
    const Place place = place_of(call.grid, number);
    memory.most[t] = wide ? greatest_of<double>(call, place, t % lanes)
                          : greatest_of<float>(call, place, t % lanes);
  });
  // Sixteen at a time, so that no thread goes through all of a long team's.
  block.phase([&](uint32_t t) {
    if (t % 16 != 0 || lanes <= 16) return;
    double most = memory.most[t];
    for (uint32_t k = 1; k < 16; ++k) most = greater(most, memory.most[t + k]);
    memory.most[t] = most;
  });
  block.phase([&](uint32_t t) {
    if (t % lanes != 0) return;
    double most = memory.most[t];
    const uint32_t step = lanes > 16 ? 16 : 1;
    for (uint32_t k = step; k < lanes; k += step) most = greater(most, memory.most[t + k]);
    memory.scale[t / lanes] = scale_of(call, most);
  });
  block.phase([&](uint32_t t) {
    const uint64_t number = i * teams + t / lanes;
    if (number >= call.blocks) return;
    const Place place = place_of(call.grid, number);
    const double scale = memory.scale[t / lanes];
    wide ? cast_block<double>(call, place, t % lanes, scale)
         : cast_block<float>(call, place, t % lanes, scale);
  });
}

}  // namespace cgx::casting::on_gpu
