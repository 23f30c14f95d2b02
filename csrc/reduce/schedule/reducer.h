// Reducers: the order in which the ranks of a group exchange and sum the values of a plan.
//
// Sums of float32, float16 and bfloat16 are fp32, other values are combined in their own type
// (combine.h), in a fixed order, so all ranks get identical bits, from run to run, on every
// communicator. A rank that sends an encoding of a value and also keeps the value keeps the decoded
// bytes, as its peers do.
//
//   algorithm                   exchanges                                               roundings
//   one_shot                    every rank sends its encoded tensor to all others       1
//   scatter_reduce_all_gather   the owner of a chunk sums it, encodes the sum and
//                               sends it to all                                         2
//   direct                      the same with exact values, from tensor to tensor       0
//   ring                        partial sums travel around, then the sums               N
//   reduce_scatter, all_gather  the halves of scatter_reduce_all_gather                 1
//   reduce                      exact values: to the root, or to the owners of chunks,
//                               who send what they have combined to the root            0
//
// Error feedback: a rank adds its residual to its input, and keeps there the error of everything that
// it encodes. Every algorithm has a rank encode each of its values once at most, its contribution or
// a sum, so the residual of a place is written once, by the encoding, and nothing else is stored.
//
// Two levels: the ranks of a host sum first (Plan::partial_dtype). Teams of one rank per host then
// reduce one shard each by one of the above, and pass its encoded bytes on inside the host.
#pragma once

#include <cstddef>

#include "base/deadline.h"
#include "comm/communicator.h"
#include "reduce/engine_options.h"
#include "reduce/plan/header.h"
#include "reduce/plan/plan.h"
#include "reduce/plan/topology.h"
#include "reduce/schedule/view.h"
#include "reduce/schedule/work_memory.h"
#include "reduce/stats.h"

namespace cgx {

class Stages;

/// The communicators of a call. One level: exactly one of the two, over all ranks of the group. Two
/// levels: `intra` over the ranks of this host (null if there is only one), `cross` over this
/// rank's team (null on ranks that are in none), `mesh` over all ranks of the group.
struct Links {
  Communicator* intra = nullptr;
  Communicator* cross = nullptr;
  Communicator* mesh = nullptr;

  Communicator& only() const { return intra != nullptr ? *intra : *cross; }
};

/// One running call on one rank. Not shared between threads.
struct Call {
  Links links;
  const Topology& topology;
  const Plan& plan;
  CallIdentity identity;
  Deadline deadline;
  Stats& stats;
  NonFinite nonfinite = NonFinite::kPropagate;
  /// Reused from call to call.
  WorkMemory& work;
  /// For the memory that tensors and messages lie in.
  Stages& stages;
  /// Set if any rank has found a non-finite value; under NonFinite::kRaise only.
  bool met_nonfinite = false;
  /// Error feedback (residual.h): fp32 or bf16 values beside those of the input. Null base: none.
  View residual{};

  /// Divisor of sums over all ranks.
  float divisor() const { return identity.average ? static_cast<float>(plan.size) : 1.0F; }
};

/// `data`: plan.values values of plan.dtype; input and output.
void all_reduce(Call& call, void* data);
void all_reduce_direct(Call& call, void* data);
void all_reduce_two_levels(Call& call, void* data);

/// Both: plan.values values; they may be the same. Only the root writes its output.
void reduce(Call& call, const void* input, void* output);
void reduce_two_levels(Call& call, const void* input, void* output);

/// `input`: plan.values values; `output`: one shard (plan.values / size). They may overlap only if
/// output is the rank's own shard of input.
void reduce_scatter(Call& call, const void* input, void* output);
void reduce_scatter_two_levels(Call& call, const void* input, void* output);

/// `input`: one shard; `output`: plan.values values. They may overlap only if input is the rank's
/// own shard of output.
void all_gather(Call& call, const void* input, void* output);
void all_gather_two_levels(Call& call, const void* input, void* output);

}  // namespace cgx
