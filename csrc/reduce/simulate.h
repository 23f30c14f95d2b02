// Simulates N ranks in one process: the real reducers over in-process communicators, one thread per
// rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reduce/engine.h"

namespace cgx {

/// The simulated group. Results depend on all of it: the hosts decide the order of sums, and the
/// sizes of messages decide which rank owns which values.
struct SimulatedGroup {
  Topology topology;
  EngineOptions options;
  /// Sequence number of the first call; keys stochastic rounding.
  uint64_t sequence = 0;
  /// Keys it instead, if there is one.
  std::optional<StepKey> key{};
};

struct SimulationResult {
  Algorithm algorithm = Algorithm::kOneShot;
  std::vector<StatsSnapshot> stats;  // by rank
};

/// All-reduces data[r] (the tensor of rank r) in place. residuals: by rank; empty: none has one.
/// Throws the error of a rank.
SimulationResult simulate_all_reduce(const SimulatedGroup& group, const std::vector<void*>& data,
                                     DType dtype, const std::vector<Layer>& layers, bool average,
                                     const std::vector<Residual>& residuals = {});

/// Reduce-scatter (inputs: N shards, outputs: one) and all-gather (inputs: one shard, outputs: N).
SimulationResult simulate_shards(const SimulatedGroup& group, Operation operation,
                                 const std::vector<const void*>& inputs,
                                 const std::vector<void*>& outputs, DType dtype, size_t shard,
                                 const std::shared_ptr<const Codec>& codec, bool average);

}  // namespace cgx
