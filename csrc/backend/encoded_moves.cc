// Moves with a codec, for torch_cgx.broadcast and torch_cgx.all_to_all_single.
#include <utility>

#include "backend/process_group_cgx.h"
#include "backend/residual_check.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

std::string origin_of(const CallOptions& call) {
  return call.chosen_by.empty() ? "given by the call" : "chosen by " + call.chosen_by;
}

void check_encodable(const char* what, const at::Tensor& tensor, bool fits) {
  TORCH_CHECK_VALUE(
      fits, "cgx: a compressed ", what, ", or one with a residual, was asked for a ",
      tensor.scalar_type(), " tensor on ", tensor.device(),
      "; it takes float32, float16 and bfloat16 tensors on the CPU, and on CUDA in a ",
      "group on one level without NCCL. Use an exact collective");
}

}  // namespace

bool ProcessGroupCGX::moves_encoded(const at::Tensor& tensor) const {
  return move_calls_->serves(tensor) && codec_type(tensor.scalar_type()).has_value();
}

WorkPtr ProcessGroupCGX::broadcast_codec(at::Tensor tensor, int64_t root,
                                         const std::shared_ptr<const Codec>& codec,
                                         const CallOptions& call) {
  Notices::explicit_call(tensor.nbytes());
  if (!codec && !call.residual.defined()) {
    c10d::BroadcastOptions opts;
    opts.rootRank = root;
    opts.timeout = call.timeout;
    opts.asyncOp = call.async;
    Tensors one = {tensor};
    return broadcast(one, opts);
  }
  executor_->check_usable("broadcast");
  check_encodable("broadcast", tensor, moves_encoded(tensor));
  const auto used = codec ? policy_->allowed_in_group(codec) : raw_codec();
  check_residual("broadcast", call.residual, tensor, tensor,
                 {{static_cast<size_t>(tensor.numel()), used}});
  return executor_->run(move_calls_->broadcast(tensor, root, used, call, origin_of(call)));
}

WorkPtr ProcessGroupCGX::all_to_all_codec(at::Tensor output, at::Tensor input,
                                          std::vector<int64_t> output_splits,
                                          std::vector<int64_t> input_splits,
                                          const std::shared_ptr<const Codec>& codec,
                                          const CallOptions& call) {
  Notices::explicit_call(input.nbytes());
  if (!codec && !call.residual.defined()) {
    c10d::AllToAllOptions opts;
    opts.timeout = call.timeout;
    opts.asyncOp = call.async;
    return alltoall_base(output, input, output_splits, input_splits, opts);
  }
  executor_->check_usable("all_to_all_single");
  for (const at::Tensor& tensor : {input, output}) {
    check_encodable("all_to_all_single", tensor, moves_encoded(tensor));
  }
  const auto used = codec ? policy_->allowed_in_group(codec) : raw_codec();
  check_residual("all_to_all_single", call.residual, input, output,
                 {{static_cast<size_t>(input.numel()), used}});
  return executor_->run(move_calls_->all_to_all_single(output, input, output_splits, input_splits,
                                                       used, call, origin_of(call)));
}

}  // namespace cgx
