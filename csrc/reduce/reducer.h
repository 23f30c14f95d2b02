// Reducers: in what order the ranks of one communicator exchange and sum what a plan describes.
//
// Sums are fp32, in rank order, so all ranks get identical bits, from run to run, on every carrier.
// Where a rank sends an encoding of a value that it also keeps, it keeps the decoded bytes, as
// everybody else does.
//
//   one_shot        every rank sends its encoded tensor to every other one; one rounding
//   scatter_reduce_all_gather   the owner of a chunk sums it, encodes the sum and sends it to all;
//   two roundings reduce_scatter  the first half of it; one rounding all_gather      the second
//   half; one rounding
#pragma once

#include <cstddef>
#include <vector>

#include "base/deadline.h"
#include "comm/communicator.h"
#include "reduce/header.h"
#include "reduce/plan.h"
#include "reduce/stats.h"

namespace cgx {

enum class NonFinite : uint8_t { kPropagate = 0, kRaise = 1 };

/// One call under way on one rank. Not shared between threads.
struct Call {
  Communicator& comm;
  const Plan& plan;
  CallIdentity identity;
  Deadline deadline;
  Stats& stats;
  NonFinite nonfinite = NonFinite::kPropagate;
  /// fp32 scratch of at least scratch_values(plan) values, reused from call to call.
  std::vector<float>& scratch;
  /// Set when a non-finite value was met on any rank, under NonFinite::kRaise only.
  bool met_nonfinite = false;
};

/// `data`: plan.values values of plan.dtype; input and output.
void one_shot(Call& call, void* data);
void scatter_reduce_all_gather(Call& call, void* data);

/// `input`: plan.values values; `output`: one shard (plan.values / size). They may overlap only if
/// output is the rank's own shard of input.
void reduce_scatter(Call& call, const void* input, void* output);

/// `input`: one shard; `output`: plan.values values. They may overlap only if input is the rank's
/// own shard of output.
void all_gather(Call& call, const void* input, void* output);

}  // namespace cgx
