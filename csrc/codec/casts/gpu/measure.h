// What a cast measures of a whole tensor, on a GPU: each block of kStatisticsBlock values by a thread block,
// in the lanes that zscore/moments.h and s2fp8/formulas.h describe; then all blocks by one thread block, in
// the order in which the CPU joins them.
#pragma once

#include "codec/casts/gpu/round.h"
#include "codec/casts/s2fp8/formulas.h"

namespace cgx::casting::on_gpu {

inline constexpr uint32_t kLanes = 16;
static_assert(kLanes == zscore::kLanes && kLanes == s2fp8::kLanes);

struct MeasureMemory {
  double values[kStatisticsBlock];  // or their logarithms
  double lanes[kLanes][4];
};

CGX_HD double load_value(const Call& call, uint64_t place) {
  const bool wide = call.type == gpu::kWideType;
  if (wide) return reinterpret_cast<const double*>(call.x)[place];
  const gpu::Type type = static_cast<gpu::Type>(call.type);
  const uint32_t each = gpu::size_of(type);
  return static_cast<double>(gpu::widen(gpu::load_word(call.x + place * each, each), type));
}

CGX_HD void load_measured(MeasureMemory& memory, const Call& call, uint64_t first, uint32_t n,
                          uint32_t t) {
  for (uint32_t i = t; i < n; i += gpu::kThreads) {
    const uint64_t place = call.samples > 0
                               ? sample_place(call.key, i, measured_values(call), call.values)
                               : first + i;
    memory.values[i] = load_value(call, place);
  }
}

/// Of the values of lane number k: the sums of their distances from the block's first value and of these
/// squared, the least value and the greatest.
CGX_HD void sum_distances(MeasureMemory& memory, uint32_t n, uint32_t k) {
  const double origin = memory.values[0];
  double distances = 0, squares = 0, least = origin, greatest = origin;
  for (uint32_t i = k; i < n; i += kLanes) {
    const double x = memory.values[i], d = x - origin;
    distances += d;
    squares += d * d;
    least = x < least ? x : least;
    greatest = greatest < x ? x : greatest;
  }
  double* const lane = memory.lanes[k];
  lane[0] = distances, lane[1] = squares, lane[2] = least, lane[3] = greatest;
}

CGX_HD void sum_logarithms(MeasureMemory& memory, uint32_t n, uint32_t k) {
  double count = 0, sum = 0, greatest = s2fp8::kLeast, least = s2fp8::kMost;
  for (uint32_t i = k; i < n; i += kLanes) {
    const double l = memory.values[i];
    if (l != l) continue;
    count += 1;
    sum += l;
    greatest = greatest < l ? l : greatest;
    least = l < least ? l : least;
  }
  double* const lane = memory.lanes[k];
  lane[0] = count, lane[1] = sum, lane[2] = least, lane[3] = greatest;
}

/// The lanes together, by one thread.
CGX_HD Measured measured_of_lanes(MeasureMemory& memory, const Call& call, uint32_t n) {
  double (&lanes)[kLanes][4] = memory.lanes;
  double least = lanes[0][2], greatest = lanes[0][3];
  for (uint32_t k = 1; k < kLanes; ++k) {
    least = lanes[k][2] < least ? lanes[k][2] : least;
    greatest = greatest < lanes[k][3] ? lanes[k][3] : greatest;
  }
  for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
    for (uint32_t k = 0; k < step; ++k) {
      lanes[k][0] += lanes[k + step][0];
      lanes[k][1] += lanes[k + step][1];
    }
  }
  if (call.work == Work::kSqueezed) return {{lanes[0][0], lanes[0][1], greatest, least}};
  const zscore::Moments found =
      zscore::moments_of(lanes[0][0], lanes[0][1], memory.values[0], static_cast<double>(n));
  if (!call.spread.of_range) return {{found.count, found.mean, found.squares}};
  return {{found.count, found.mean, least, greatest}};
}

/// Measures block number i.
template <typename Block>
CGX_HD void measure_stage(Block& block, MeasureMemory& memory, const Call& call, uint64_t i) {
  const uint64_t first = i * kStatisticsBlock, left = measured_values(call) - first;
  const uint32_t n = static_cast<uint32_t>(left < kStatisticsBlock ? left : kStatisticsBlock);
  const bool squeezed = call.work == Work::kSqueezed;
  block.phase([&](uint32_t t) {
    load_measured(memory, call, first, n, t);
    for (uint32_t v = t; squeezed && v < n; v += gpu::kThreads) {
      const double x = memory.values[v];
      memory.values[v] =
          s2fp8::has_logarithm(x) != 0 ? s2fp8::logarithm_of(x) : wide_from_bits(kWideNan);
    }
  });
  block.phase([&](uint32_t t) {
    if (t >= kLanes) return;
    squeezed ? sum_logarithms(memory, n, t) : sum_distances(memory, n, t);
  });
  block.phase([&](uint32_t t) {
    if (t == 0) call.measured[i] = measured_of_lanes(memory, call, n);
  });
}

CGX_HD Measured joined(const Call& call, const Measured& a, const Measured& b) {
  return call.work == Work::kSqueezed ? s2fp8::joined(a, b)
                                      : zscore::joined(call.spread.of_range, a, b);
}

/// What all of them give, in place of the first.
template <typename Block>
CGX_HD void join_stage(Block& block, gpu::NoMemory&, const Call& call, uint64_t) {
  const uint64_t blocks = measured_blocks(call);
  const uint64_t parts = (blocks + kJoinedBlocks - 1) / kJoinedBlocks;
  Measured* const measured = call.measured;
  block.phase([&](uint32_t t) {
    for (uint64_t part = t; part < parts; part += gpu::kThreads) {
      const uint64_t first = part * kJoinedBlocks, end = first + kJoinedBlocks;
      Measured all = measured[first];
      for (uint64_t b = first + 1; b < end && b < blocks; ++b) all = joined(call, all, measured[b]);
      measured[first] = all;
    }
  });
  block.phase([&](uint32_t t) {
    if (t != 0) return;
    Measured all = measured[0];
    for (uint64_t part = 1; part < parts; ++part) {
      all = joined(call, all, measured[part * kJoinedBlocks]);
    }
    measured[0] = all;
  });
}

}  // namespace cgx::casting::on_gpu
