// Chooses the plan of a call: algorithm and size of messages, from the options and the topology
// of the group.
//
// Thread-safety: pure functions; equal arguments give equal plans on all ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "reduce/engine_options.h"
#include "reduce/plan/plan.h"
#include "reduce/plan/topology.h"

namespace cgx {

/// What users call reductions, comma-separated.
inline constexpr char kReductions[] = "AUTO,SRA,ONESHOT,RING";
/// The reduction of such a name, in any case. ConfigError: names `where`, the value and those.
Reduction reduction_of(const std::string& where, const std::string& name);

/// The algorithm for an all-reduce of these layers under these options, if it fits. kAuto: direct
/// where the options say so; else one-shot for two ranks (as many bytes as
/// scatter-reduce-all-gather, half the roundings and half the latency) and for messages so small
/// that a second exchange would cost more than the extra bytes.
Algorithm choose_algorithm(const EngineOptions& options, const Topology& topology,
                           const std::vector<Layer>& layers, DType dtype);

/// The plan of an all-reduce. If the messages of kAuto's algorithm do not fit into a communicator,
/// scatter-reduce-all-gather is tried. ConfigError if a bucket does not fit into a message.
std::shared_ptr<const Plan> make_all_reduce_plan(const EngineOptions& options,
                                                 const Topology& topology,
                                                 const std::vector<Layer>& layers, DType dtype,
                                                 Combine combine = Combine::kSum);

/// The plan of a reduce to `root`. kAuto: two sides, and few values, have the root combine all of
/// them; kRing as kAuto.
std::shared_ptr<const Plan> make_reduce_plan(const EngineOptions& options, const Topology& topology,
                                             size_t values, DType dtype, Combine combine, int root);

/// The plan of a reduce-scatter or an all-gather.
std::shared_ptr<const Plan> make_shards_plan(const EngineOptions& options, const Topology& topology,
                                             Operation operation, size_t shard,
                                             const std::shared_ptr<const Codec>& codec, DType dtype,
                                             Combine combine = Combine::kSum);

/// The reason for a plan's algorithm: for logs.
std::string why_algorithm(const EngineOptions& options, const Plan& plan, const Topology& topology);

}  // namespace cgx
