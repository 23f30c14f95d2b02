#include "backend/engine_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <utility>

#include "backend/gpu/checks.h"
#include "backend/residual_check.h"
#include "tensors/dtypes.h"
#include "tensors/memory.h"

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

// The engine's name for the op; AVG divides, PREMUL_SUM multiplies before.
Combine combine_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::MIN:
      return Combine::kMin;
    case c10d::ReduceOp::MAX:
      return Combine::kMax;
    case c10d::ReduceOp::PRODUCT:
      return Combine::kProduct;
    case c10d::ReduceOp::BAND:
      return Combine::kBitAnd;
    case c10d::ReduceOp::BOR:
      return Combine::kBitOr;
    case c10d::ReduceOp::BXOR:
      return Combine::kBitXor;
    default:
      return Combine::kSum;
  }
}

bool averages(const c10d::ReduceOp& op) { return op.op_ == c10d::ReduceOp::AVG; }

bool premultiplies(const c10d::ReduceOp& op) { return op.op_ == c10d::ReduceOp::PREMUL_SUM; }

void check_op(const char* what, const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  TORCH_CHECK_TYPE(!averages(op) || type != at::kBool, "cgx: ", what,
                   " AVG of a bool tensor is not supported; SUM (any of them), MIN and MAX are");
  TORCH_CHECK_TYPE(!premultiplies(op) || codec_type(type) || type == at::kDouble, "cgx: ", what,
                   " PREMUL_SUM of a ", type,
                   " tensor; allowed: float32, float16, bfloat16, float64");
}

// This rank's values, dense, as it contributes them: for PREMUL_SUM times the factor, in other
// memory.
at::Tensor contribution(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const at::Tensor plain = readable(tensor);
  if (!premultiplies(op)) return plain;
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "cgx: PREMUL_SUM without a factor");
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (!factor->tensor_factor.defined()) return at::mul(plain, factor->double_factor);
  return at::mul(plain, factor->tensor_factor.reshape({}).to(plain.options()));
}

int bits_of(const Plan& plan) {
  const Layer* first = plan.first_compressed();
  return first != nullptr ? first->codec->bits() : 0;
}

}  // namespace

std::optional<DType> reduced_dtype(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided) return engine_dtype(tensor);
  const std::optional<DType> known = dtype_of(tensor.scalar_type());
  return known && kReduced.has(*known) ? known : std::nullopt;
}

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
    check_op("all_reduce", op, tensors[i]);
    at::Tensor memory = dense("all_reduce", tensors[i]);
    auto plan =
        engine_of(lane).plan_all_reduce(layers[i], *reduced_dtype(tensors[i]), combine_of(op));
    if (premultiplies(op)) memory = contribution(memory, op);
    parts.push_back({std::move(plan), memory, memory, tensors[i]});
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
      .average = averages(op),
      .options = call,
      .why = std::move(why),
  };
}

EngineCall EngineCalls::reduce_scatter(const Tensors& outputs, const Tensors& inputs,
                                       const c10d::ReduceOp& op,
                                       const std::vector<std::shared_ptr<const Codec>>& codecs,
                                       const CallOptions& call, std::string why) {
  refuse_in_capture("reduce_scatter", inputs.front());
  GpuLane* const lane = lane_of(inputs.front());
  std::vector<EngineCall::Part> parts;
  int64_t values = 0;
  uint64_t hash = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor &input = inputs[i], &output = outputs[i];
    check_shards("reduce_scatter", input, output, group_.size, input);
    check_same_device("reduce_scatter", input, output);
    check_same_device("reduce_scatter", inputs.front(), input);
    check_op("reduce_scatter", op, input);
    check_residual("reduce_scatter", call.residual, input, output, {{0, codecs[i]}});
    auto plan =
        engine_of(lane).plan_shards(Operation::kReduceScatter, static_cast<size_t>(output.numel()),
                                    codecs[i], *reduced_dtype(input), combine_of(op));
    const at::Tensor out = dense("reduce_scatter", output);
    at::Tensor in = contribution(input, op);
    in = apart(in, out, part_of(in, out, group_.rank));
    values += input.numel();
    hash = hash * 31 + plan->hash;
    parts.push_back({std::move(plan), in, out, output});
  }
  const int bits = bits_of(*parts.front().plan);
  return {
      .shape = {c10d::OpType::_REDUCE_SCATTER_BASE, op.op_, outputs.front().scalar_type(), values,
                -1, true, false, hash, bits},
      .title = "cgx:reduce_scatter",
      .inputs = inputs,
      .outputs = outputs,
      .lane = lane,
      .parts = std::move(parts),
      .average = averages(op),
      .options = call,
      .why = std::move(why),
  };
}

EngineCall EngineCalls::reduce_scatter_list(const at::Tensor& output, const Tensors& inputs,
                                            const c10d::ReduceOp& op, const CallOptions& call) {
  check_op("reduce_scatter", op, output);
  const DType dtype = *reduced_dtype(output);
  const at::Tensor out = dense("reduce_scatter", output);
  const bool even = std::all_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
    return input.numel() == output.numel();
  });
  std::vector<EngineCall::Part> parts;
  int64_t values = 0;
  if (even) {
    const auto own = static_cast<size_t>(group_.rank);
    Tensors shards;
    for (const at::Tensor& input : inputs) {
      at::Tensor in = contribution(input, op);
      // The own shard is read before the output is written.
      const bool in_place = shards.size() == own && in.const_data_ptr() == out.const_data_ptr();
      if (share_memory(in, out) && !in_place) in = in.clone();
      values += in.numel();
      shards.push_back(std::move(in));
    }
    auto plan = engine_.plan_shards(Operation::kReduceScatter, static_cast<size_t>(output.numel()),
                                    raw_codec(), dtype, combine_of(op));
    const at::Tensor in = shards[own];
    parts.push_back({std::move(plan), in, out, output, std::move(shards)});
  } else {
    // To each rank its own, one after the other. The output may be an input that is read later.
    values = CallShape::kUneven;
    for (int rank = 0; rank < group_.size; ++rank) {
      const at::Tensor& input = inputs[static_cast<size_t>(rank)];
      at::Tensor in = contribution(input, op);
      if (share_memory(in, out)) in = in.clone();
      auto plan =
          engine_.plan_reduce(static_cast<size_t>(input.numel()), dtype, combine_of(op), rank);
      const bool mine = rank == group_.rank;
      parts.push_back({std::move(plan), in, mine ? out : in, mine ? output : in});
    }
  }
  return {
      .shape = {c10d::OpType::REDUCE_SCATTER, op.op_, output.scalar_type(), values, -1, true},
      .title = "cgx:reduce_scatter",
      .inputs = inputs,
      .outputs = {output},
      .lane = nullptr,
      .parts = std::move(parts),
      .average = averages(op),
      .options = call,
      .why = "exact values",
  };
}

EngineCall EngineCalls::reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
                               const CallOptions& call) {
  check_op("reduce", op, tensor);
  auto plan = engine_.plan_reduce(static_cast<size_t>(tensor.numel()), *reduced_dtype(tensor),
                                  combine_of(op), root);
  check_writable("reduce", tensor, /*lazy=*/false);
  const at::Tensor in = contribution(tensor, op);
  return {
      .shape = {c10d::OpType::REDUCE, op.op_, tensor.scalar_type(), tensor.numel(), root, true},
      .title = "cgx:reduce",
      .inputs = {tensor},
      .outputs = {tensor},
      .lane = nullptr,
      .parts = {{std::move(plan), in, in, group_.rank == root ? tensor : in}},
      .average = averages(op),
      .options = call,
      .why = "exact values",
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
