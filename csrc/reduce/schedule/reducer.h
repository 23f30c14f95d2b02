// Reducers: in what order the ranks of a group exchange and sum what a plan describes.
//
// Sums are fp32, in a fixed order, so all ranks get identical bits, from run to run, on every
// communicator. Where a rank sends an encoding of a value that it also keeps, it keeps the decoded
// bytes, as everybody else does.
//
//   one_shot       every rank sends its encoded tensor to every other one; one rounding
//   scatter_reduce_all_gather
//                  the owner of a chunk sums it, encodes the sum and sends it to all; two roundings
//   direct         the same of exact values, from tensor to tensor
//   ring           partial sums travel around, and so does the result; N roundings
//   reduce_scatter, all_gather
//                  the halves of scatter_reduce_all_gather; one rounding
//   two levels     the ranks of a host sum first, in fp32; teams of one rank per host then reduce
//                  one shard each by one of the above, and pass its encoded bytes on inside the
//                  host
#pragma once

#include <cstddef>
#include <vector>

#include "base/deadline.h"
#include "base/parallel.h"
#include "comm/communicator.h"
#include "reduce/engine_options.h"
#include "reduce/plan/header.h"
#include "reduce/plan/plan.h"
#include "reduce/plan/topology.h"
#include "reduce/schedule/work_memory.h"
#include "reduce/stats.h"

namespace cgx {

class DeviceStages;

/// The communicators of a call. One level: exactly one of the two, over all ranks of the group. Two
/// levels: `inner` over the ranks of this host (null if there is only one), `cross` over this
/// rank's team (null on ranks that are in none).
struct Links {
  Communicator* inner = nullptr;
  Communicator* cross = nullptr;

  Communicator& only() const { return inner != nullptr ? *inner : *cross; }
};

/// One call under way on one rank. Not shared between threads.
struct Call {
  Links links;
  const Topology& topology;
  const Plan& plan;
  CallIdentity identity;
  Deadline deadline;
  Stats& stats;
  NonFinite nonfinite = NonFinite::kPropagate;
  /// Reused from call to call.
  std::vector<float>& scratch;
  WorkMemory& work;
  /// Null: the calling thread alone.
  const Parallel* parallel = nullptr;
  /// Where tensors and messages are memory of a GPU; null: host memory.
  DeviceStages* device = nullptr;
  /// Set when a non-finite value was met on any rank, under NonFinite::kRaise only.
  bool met_nonfinite = false;

  /// What sums over all ranks are divided by.
  float divisor() const { return identity.average ? static_cast<float>(plan.size) : 1.0F; }
};

/// `data`: plan.values values of plan.dtype; input and output.
void all_reduce(Call& call, void* data);
void all_reduce_direct(Call& call, void* data);
void all_reduce_two_levels(Call& call, void* data);

/// `input`: plan.values values; `output`: one shard (plan.values / size). They may overlap only if
/// output is the rank's own shard of input.
void reduce_scatter(Call& call, const void* input, void* output);
void reduce_scatter_two_levels(Call& call, const void* input, void* output);

/// `input`: one shard; `output`: plan.values values. They may overlap only if input is the rank's
/// own shard of output.
void all_gather(Call& call, const void* input, void* output);
void all_gather_two_levels(Call& call, const void* input, void* output);

}  // namespace cgx
