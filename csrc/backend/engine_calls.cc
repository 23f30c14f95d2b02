#include "backend/engine_calls.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "backend/adapters/tensor_memory.h"
#include "backend/gpu/call.h"
#include "codec/feedback.h"

namespace cgx {
namespace {

// Memory that the engine writes for a tensor: the tensor's own, or a copy, to be copied back.
at::Tensor dense(const char* what, const at::Tensor& tensor) {
  check_writable(what, tensor, /*lazy=*/false);
  return readable(tensor);
}

// The input of a call that writes `output`: of its own where the two overlap, other than as `own`,
// this rank's part of the larger one, which is read before it is written.
at::Tensor apart(const at::Tensor& input, const at::Tensor& output, const void* own) {
  const at::Tensor& smaller = input.numel() < output.numel() ? input : output;
  if (!share_memory(input, output) || smaller.const_data_ptr() == own) return input;
  return input.clone();
}

const void* part_of(const at::Tensor& whole, const at::Tensor& shard, int rank) {
  return static_cast<const char*>(whole.const_data_ptr()) +
         static_cast<size_t>(rank) * shard.nbytes();
}

// `whole` is `size` times as long as the other.
void check_shards(const char* what, const at::Tensor& input, const at::Tensor& output, int size,
                  const at::Tensor& whole) {
  TORCH_CHECK_VALUE(input.scalar_type() == output.scalar_type(), "cgx: ", what, ": input is ",
                    input.scalar_type(), ", output is ", output.scalar_type(),
                    "; they must be equal");
  const bool gathers = whole.is_same(output);
  const at::Tensor& shard = gathers ? input : output;
  TORCH_CHECK_VALUE(whole.numel() == shard.numel() * size, "cgx: ", what, " on ", size,
                    " ranks: input has ", input.numel(), " values, output has ", output.numel(),
                    "; the ", gathers ? "output" : "input", " must have ", size, " times as many");
}

void check_same_device(const char* what, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK_VALUE(one.device() == other.device(), "cgx: ", what, " of tensors on ", one.device(),
                    " and ", other.device(), "; they must be on the same device");
}

void refuse_in_capture(const char* what, const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  refuse_capture(guard.getStream(tensor.device()), what,
                 "numbers of calls, deadlines and checks of the peers belong to");
}

// A residual belongs to the values of `input`, and is written while the tensors are.
void check_residual(const char* what, const at::Tensor& residual, const at::Tensor& input,
                    const at::Tensor& output, const std::vector<Layer>& layers) {
  if (!residual.defined()) return;
  for (const Layer& layer : layers) check_feedback(*layer.codec);
  const auto type = residual.scalar_type();
  TORCH_CHECK_TYPE(type == at::kFloat || type == at::kBFloat16, "cgx: ", what, ": the residual is ",
                   type, "; allowed: float32, bfloat16");
  TORCH_CHECK_TYPE(residual.layout() == at::kStrided && !residual.is_nested(), "cgx: ", what,
                   ": the residual has the layout ", residual.layout(), "; allowed: torch.strided");
  TORCH_CHECK_VALUE(residual.sizes() == input.sizes(), "cgx: ", what,
                    ": the residual has the shape ", residual.sizes(), "; allowed: the input's, ",
                    input.sizes());
  TORCH_CHECK_VALUE(residual.device() == input.device(), "cgx: ", what, ": the residual is on ",
                    residual.device(), "; allowed: the input's device, ", input.device());
  TORCH_CHECK_VALUE(residual.is_contiguous() && !residual.is_neg(), "cgx: ", what,
                    ": the residual is not contiguous (strides ", residual.strides(),
                    ") or lazily negated; allowed: a contiguous tensor");
  check_writable(what, residual);
  TORCH_CHECK_VALUE(!share_memory(residual, input) && !share_memory(residual, output),
                    "cgx: ", what, ": the residual shares memory with the input or the output");
}

int bits_of(const Plan& plan) {
  const Layer* first = plan.first_compressed();
  return first != nullptr ? first->codec->bits() : 0;
}

}  // namespace

GpuLane* EngineCalls::lane_of(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? nullptr : &gpu_.lane(tensor);
}

EngineCall EngineCalls::all_reduce(const Tensors& tensors, const c10d::ReduceOp& op,
                                   const std::vector<std::vector<Layer>>& layers,
                                   const CallOptions& call, std::string why) {
  refuse_in_capture("all_reduce", tensors.front());
  std::vector<EngineCall::Part> parts;
  int64_t values = 0;
  uint64_t hash = 0;
  check_residual("all_reduce", call.residual, tensors.front(), tensors.front(), layers.front());
  GpuLane* const lane = lane_of(tensors.front());
  for (size_t i = 0; i < tensors.size(); ++i) {
    // Plans are made here, on the caller's thread: a bad configuration is the caller's exception
    // and breaks nothing.
    check_same_device("all_reduce", tensors.front(), tensors[i]);
    const at::Tensor memory = dense("all_reduce", tensors[i]);
    parts.push_back({engine_of(lane).plan_all_reduce(layers[i], *engine_dtype(tensors[i])), memory,
                     memory, tensors[i]});
    values += tensors[i].numel();
    hash = hash * 31 + parts.back().plan->hash;
  }
  const auto type =
      tensors.size() == 1 ? c10d::OpType::ALLREDUCE : c10d::OpType::ALLREDUCE_COALESCED;
  const int bits = bits_of(*parts.front().plan);
  return {
      .shape = {type, op.op_, tensors.front().scalar_type(), values, -1, true, false, hash, bits},
      .title = "cgx:all_reduce",
      .inputs = tensors,
      .outputs = tensors,
      .lane = lane,
      .parts = std::move(parts),
      .average = op.op_ == c10d::ReduceOp::AVG,
      .options = call,
      .why = std::move(why),
  };
}

EngineCall EngineCalls::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const c10d::ReduceOp& op,
                                       const std::shared_ptr<const Codec>& codec,
                                       const CallOptions& call, std::string why) {
  refuse_in_capture("reduce_scatter", input);
  check_shards("reduce_scatter", input, output, group_.size, input);
  check_same_device("reduce_scatter", input, output);
  check_residual("reduce_scatter", call.residual, input, output, {{0, codec}});
  const at::Tensor out = dense("reduce_scatter", output);
  at::Tensor in = readable(input);
  in = apart(in, out, part_of(in, out, group_.rank));
  GpuLane* const lane = lane_of(input);
  auto plan = engine_of(lane).plan_shards(
      Operation::kReduceScatter, static_cast<size_t>(output.numel()), codec, *engine_dtype(input));
  return {
      .shape = {c10d::OpType::_REDUCE_SCATTER_BASE, op.op_, output.scalar_type(), input.numel(), -1,
                true, false, plan->hash, bits_of(*plan)},
      .title = "cgx:reduce_scatter",
      .inputs = {input},
      .outputs = {output},
      .lane = lane,
      .parts = {{plan, in, out, output}},
      .average = op.op_ == c10d::ReduceOp::AVG,
      .options = call,
      .why = std::move(why),
  };
}

EngineCall EngineCalls::all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const std::shared_ptr<const Codec>& codec,
                                   const CallOptions& call, std::string why) {
  refuse_in_capture("all_gather", input);
  check_shards("all_gather", input, output, group_.size, output);
  check_same_device("all_gather", input, output);
  check_residual("all_gather", call.residual, input, output, {{0, codec}});
  const at::Tensor out = dense("all_gather", output);
  at::Tensor in = readable(input);
  in = apart(in, out, part_of(out, in, group_.rank));
  GpuLane* const lane = lane_of(input);
  auto plan = engine_of(lane).plan_shards(Operation::kAllGather, static_cast<size_t>(input.numel()),
                                          codec, *engine_dtype(input));
  return {
      .shape = {c10d::OpType::_ALLGATHER_BASE, std::nullopt, input.scalar_type(), output.numel(),
                -1, true, false, plan->hash, bits_of(*plan)},
      .title = "cgx:all_gather",
      .inputs = {input},
      .outputs = {output},
      .lane = lane,
      .parts = {{plan, in, out, output}},
      .average = false,
      .options = call,
      .why = std::move(why),
  };
}

}  // namespace cgx
