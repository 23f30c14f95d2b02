// The result that N ranks would get, in one process: the real reducers over the in-process carrier,
// one thread per rank.
#pragma once

#include <cstdint>
#include <vector>

#include "reduce/engine.h"

namespace cgx {

struct SimulationResult {
  Algorithm algorithm = Algorithm::kOneShot;
  std::vector<StatsSnapshot> stats;  // by rank
};

/// All-reduces data[r] (the tensor of rank r) in place on data.size() ranks. `slot_bytes` is the
/// carrier's message size (a result does not depend on it). `sequence` keys stochastic rounding.
/// Throws what the ranks throw.
SimulationResult simulate_all_reduce(const std::vector<void*>& data, DType dtype,
                                     const std::vector<Segment>& segments, bool average,
                                     EngineOptions options, uint64_t sequence, size_t slot_bytes);

/// Reduce-scatter (inputs: N shards, outputs: one) and all-gather (inputs: one shard, outputs: N).
SimulationResult simulate_shards(Operation operation, const std::vector<const void*>& inputs,
                                 const std::vector<void*>& outputs, DType dtype, size_t shard,
                                 const std::shared_ptr<const Codec>& codec, bool average,
                                 EngineOptions options, uint64_t sequence, size_t slot_bytes);

}  // namespace cgx
