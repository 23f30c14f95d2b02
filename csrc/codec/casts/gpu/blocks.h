// Blocks on a GPU: a team of threads takes a block, eight values of a row of it at a time. It reads them
// twice: for the greatest magnitude, and to cast them.
#pragma once

#include "codec/casts/gpu/round.h"
#include "codec/casts/integer/affine.h"

namespace cgx::casting::on_gpu {

struct BlocksMemory {
  // Of a thread's values, then of more: the greatest magnitude; or the least value and the greatest.
  double most[gpu::kThreads], least[gpu::kThreads];
  double scale[gpu::kThreads];  // by team
  integers::Affine affine[gpu::kThreads];
};

/// A block's place in the tensor.
struct Place {
  uint64_t first, columns;  // columns: values of a row of the block
  uint32_t rows;
};

CGX_HD Place place_of(const Grid& grid, uint64_t block) {
  const uint64_t strip = block / grid.across, column = block % grid.across * grid.size;
  const uint64_t plane = strip / grid.strips, row = strip % grid.strips * grid.block_rows;
  const uint64_t columns = grid.columns - column, rows = grid.rows - row;
  return {(plane * grid.rows + row) * grid.columns + column,
          columns < grid.size ? columns : grid.size,
          rows < grid.block_rows ? static_cast<uint32_t>(rows) : grid.block_rows};
}

/// Calls work(first, n) for each group of at most eight values of a block that is this lane's.
template <typename Work>
CGX_HD void each_group(const Grid& grid, const Place& place, uint32_t lane, uint32_t lanes,
                       const Work& work) {
  const auto groups = static_cast<uint32_t>((place.columns + gpu::kGroup - 1) / gpu::kGroup);
  CGX_LOOP for (uint32_t g = lane; g < groups * place.rows; g += lanes) {
    const uint32_t row = g / groups;
    const uint64_t column = uint64_t{g % groups} * gpu::kGroup, left = place.columns - column;
    work(place.first + row * grid.columns + column,
         left < gpu::kGroup ? static_cast<uint32_t>(left) : gpu::kGroup);
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

/// NaN counts as the greatest, and as the least.
CGX_HD double greater(double a, double b) { return a > b || a != a ? a : b; }
CGX_HD double less(double a, double b) { return a < b || a != a ? a : b; }

/// The least value and the greatest.
template <typename Real>
CGX_HD void find_range(const Call& call, const Place& place, uint32_t lane, double& least,
                       double& most) {
  const double infinity = wide_from_bits(formats::WordOf<double>::kInfinity);
  least = infinity, most = -infinity;
  each_group(call.grid, place, lane, call.lanes, [&](uint64_t first, uint32_t n) {
    gpu::Eight<Real> eight;
    load_eight(call.x, first, n, call.type, eight);
    CGX_UNROLL for (uint32_t k = 0; k < gpu::kGroup; ++k) {
      if (k >= n) continue;
      const double x = static_cast<double>(eight.values[k]);
      least = less(least, x);
      most = greater(most, x);
    }
  });
}

CGX_HD double scale_of(const Call& call, double amax) {
  const double infinity = wide_from_bits(formats::WordOf<double>::kInfinity);
  const double all = call.amax != nullptr ? *call.amax : 0.0;
  if (!(amax < infinity) || !(all < infinity)) return wide_from_bits(kWideNan);
  if (static_cast<formats::Scale>(call.scale) == formats::Scale::kE8m0) {
    return static_cast<double>(
        formats::power_of_two(formats::power_of_scale(call.scale_rule, amax)));
  }
  const float scale = formats::divisor_of(call.scale_rule, amax);
  if (call.amax == nullptr || call.of_tensor) return static_cast<double>(scale);
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

/// The same of integers with a zero point, which never saturate.
template <typename Real>
CGX_HD void cast_affine(const Call& call, const Place& place, uint32_t lane,
                        const integers::Affine& affine) {
  const Real scale = static_cast<Real>(affine.scale);
  const auto lowest = integers::place_of(static_cast<Real>(affine.lowest));
  const auto highest = integers::place_of(static_cast<Real>(affine.highest));
  each_group(call.grid, place, lane, call.lanes, [&](uint64_t first, uint32_t n) {
    gpu::Eight<Real> eight;
    load_eight(call.x, first, n, call.type, eight);
    CGX_UNROLL for (uint32_t k = 0; k < gpu::kGroup; ++k) {
      const Real integer = rounded(call, eight.values[k] / scale, first + k);
      eight.values[k] = integers::multiple_of(integer, scale, lowest, highest);
    }
    store_eight(call.y, first, n, call.type, eight);
  });
}

template <typename Real>
CGX_HD void measure_lane(BlocksMemory& memory, const Call& call, const Place& place, uint32_t t) {
  if (call.steps > 0.0) {
    find_range<Real>(call, place, t % call.lanes, memory.least[t], memory.most[t]);
  } else {
    memory.most[t] = greatest_of<Real>(call, place, t % call.lanes);
  }
}

/// Joins what `count` threads found, `step` apart.
CGX_HD void join_lanes(BlocksMemory& memory, uint32_t t, uint32_t count, uint32_t step) {
  double most = memory.most[t], least = memory.least[t];
  for (uint32_t k = step; k < count; k += step) {
    most = greater(most, memory.most[t + k]);
    least = less(least, memory.least[t + k]);
  }
  memory.most[t] = most;
  memory.least[t] = least;
}

/// A scale of NaN where a value is none, or infinite.
CGX_HD void set_scale(BlocksMemory& memory, const Call& call, uint32_t team, double least,
                      double most) {
  if (!(call.steps > 0.0)) {
    memory.scale[team] = scale_of(call, most);
    return;
  }
  const double infinity = wide_from_bits(formats::WordOf<double>::kInfinity);
  const bool finite = least > -infinity && most < infinity;
  memory.affine[team] = integers::affine_of(finite ? least : 0.0, finite ? most : 0.0, call.steps);
  if (!finite) memory.affine[team].scale = from_bits(kNan);
}

template <typename Real>
CGX_HD void cast_lane(const BlocksMemory& memory, const Call& call, const Place& place,
                      uint32_t t) {
  const uint32_t team = t / call.lanes, lane = t % call.lanes;
  call.steps > 0.0 ? cast_affine<Real>(call, place, lane, memory.affine[team])
                   : cast_block<Real>(call, place, lane, memory.scale[team]);
}

/// Part number i of the call: kThreads / lanes blocks.
template <typename Block>
CGX_HD void blocks_stage(Block& block, BlocksMemory& memory, const Call& call, uint64_t i) {
  const uint32_t lanes = call.lanes, teams = gpu::kThreads / lanes;
  const bool wide = call.type == gpu::kWideType;
  block.phase([&](uint32_t t) {
    const uint64_t number = i * teams + t / lanes;
    memory.most[t] = memory.least[t] = 0;
    if (number >= call.blocks || call.of_tensor) return;
    const Place place = place_of(call.grid, number);
    wide ? measure_lane<double>(memory, call, place, t)
         : measure_lane<float>(memory, call, place, t);
  });
  // Sixteen at a time, so that no thread goes through all of a long team's.
  block.phase([&](uint32_t t) {
    if (t % 16 == 0 && lanes > 16) join_lanes(memory, t, 16, 1);
  });
  block.phase([&](uint32_t t) {
    if (t % lanes != 0) return;
    if (call.of_tensor) {
      const bool range = call.range != nullptr;
      set_scale(memory, call, t / lanes, range ? call.range[0] : 0.0,
                range ? call.range[1] : *call.amax);
      return;
    }
    join_lanes(memory, t, lanes, lanes > 16 ? 16 : 1);
    set_scale(memory, call, t / lanes, memory.least[t], memory.most[t]);
  });
  block.phase([&](uint32_t t) {
    const uint64_t number = i * teams + t / lanes;
    if (number >= call.blocks) return;
    const Place place = place_of(call.grid, number);
    wide ? cast_lane<double>(memory, call, place, t) : cast_lane<float>(memory, call, place, t);
  });
}

}  // namespace cgx::casting::on_gpu
