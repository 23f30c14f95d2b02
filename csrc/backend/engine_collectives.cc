#include "backend/engine_collectives.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "codec/feedback.h"
#include "tensors/gpu/stream.h"
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

Residual residual_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr(), *codec_type(tensor.scalar_type())};
}

// The tensors that a body uses, for the memory of EngineCall.
Tensors with(Tensors memory, const at::Tensor& residual) {
  if (residual.defined()) memory.push_back(residual);
  return memory;
}

int bits_of(const Plan& plan) {
  const Layer* first = plan.first_compressed();
  return first != nullptr ? first->codec->bits() : 0;
}

}  // namespace

Engine& EngineCollectives::engine_for(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? engine_ : gpu_.lane(tensor).engine();
}

WorkPtr EngineCollectives::all_reduce(const Tensors& tensors, const c10d::ReduceOp& op,
                                      const std::vector<std::vector<Layer>>& layers,
                                      const CallOptions& call, std::string why) {
  executor_.check_usable("all_reduce");
  refuse_in_capture("all_reduce", tensors.front());
  struct Item {
    at::Tensor tensor, memory;
    std::shared_ptr<const Plan> plan;
  };
  std::vector<Item> items;
  Tensors memory;
  int64_t values = 0;
  uint64_t hash = 0;
  check_residual("all_reduce", call.residual, tensors.front(), tensors.front(), layers.front());
  Engine& engine = engine_for(tensors.front());
  for (size_t i = 0; i < tensors.size(); ++i) {
    // Plans are made here, on the caller's thread: a bad configuration is the caller's exception
    // and breaks nothing.
    check_same_device("all_reduce", tensors.front(), tensors[i]);
    items.push_back({tensors[i], dense("all_reduce", tensors[i]),
                     engine.plan_all_reduce(layers[i], *engine_dtype(tensors[i]))});
    memory.insert(memory.end(), {items.back().memory, tensors[i]});
    values += tensors[i].numel();
    hash = hash * 31 + items.back().plan->hash;
  }
  const bool average = op.op_ == c10d::ReduceOp::AVG;
  const auto type =
      tensors.size() == 1 ? c10d::OpType::ALLREDUCE : c10d::OpType::ALLREDUCE_COALESCED;
  return executor_.run({
      .shape = {type, op.op_, tensors.front().scalar_type(), values, -1, true, false, hash,
                bits_of(*items.front().plan)},
      .title = "cgx:all_reduce",
      .inputs = tensors,
      .outputs = tensors,
      .memory = with(std::move(memory), call.residual),
      .options = call,
      .why = std::move(why),
      .body =
          [executor = &executor_, &engine, items = std::move(items), bits = call.bits, average,
           residual = call.residual, key = call.key](const Deadline& deadline, CallRecord& record) {
            for (const Item& item : items) {
              void* data = item.memory.data_ptr();
              executor->run_plan(engine, item.plan, bits, data, data, average, deadline, record,
                                 residual_of(residual), key);
              if (!item.memory.is_same(item.tensor)) item.tensor.copy_(item.memory);
            }
          },
  });
}

WorkPtr EngineCollectives::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          const c10d::ReduceOp& op,
                                          const std::shared_ptr<const Codec>& codec,
                                          const CallOptions& call, std::string why) {
  executor_.check_usable("reduce_scatter_tensor");
  refuse_in_capture("reduce_scatter", input);
  check_shards("reduce_scatter", input, output, group_.size, input);
  check_same_device("reduce_scatter", input, output);
  check_residual("reduce_scatter", call.residual, input, output, {{0, codec}});
  const at::Tensor out = dense("reduce_scatter", output);
  at::Tensor in = readable(input);
  in = apart(in, out, part_of(in, out, group_.rank));
  Engine& engine = engine_for(input);
  auto plan = engine.plan_shards(Operation::kReduceScatter, static_cast<size_t>(output.numel()),
                                 codec, *engine_dtype(input));
  const bool average = op.op_ == c10d::ReduceOp::AVG;
  return executor_.run({
      .shape = {c10d::OpType::_REDUCE_SCATTER_BASE, op.op_, output.scalar_type(), input.numel(), -1,
                true, false, plan->hash, bits_of(*plan)},
      .title = "cgx:reduce_scatter",
      .inputs = {input},
      .outputs = {output},
      .memory = with({in, out, output}, call.residual),
      .options = call,
      .why = std::move(why),
      .body =
          [executor = &executor_, &engine, in, out, output, plan, bits = call.bits, average,
           residual = call.residual, key = call.key](const Deadline& deadline, CallRecord& record) {
            executor->run_plan(engine, plan, bits, in.data_ptr(), out.data_ptr(), average, deadline,
                               record, residual_of(residual), key);
            if (!out.is_same(output)) output.copy_(out);
          },
  });
}

WorkPtr EngineCollectives::all_gather(const at::Tensor& output, const at::Tensor& input,
                                      const std::shared_ptr<const Codec>& codec,
                                      const CallOptions& call, std::string why) {
  executor_.check_usable("all_gather_into_tensor");
  refuse_in_capture("all_gather", input);
  check_shards("all_gather", input, output, group_.size, output);
  check_same_device("all_gather", input, output);
  check_residual("all_gather", call.residual, input, output, {{0, codec}});
  const at::Tensor out = dense("all_gather", output);
  at::Tensor in = readable(input);
  in = apart(in, out, part_of(out, in, group_.rank));
  Engine& engine = engine_for(input);
  auto plan = engine.plan_shards(Operation::kAllGather, static_cast<size_t>(input.numel()), codec,
                                 *engine_dtype(input));
  return executor_.run({
      .shape = {c10d::OpType::_ALLGATHER_BASE, std::nullopt, input.scalar_type(), output.numel(),
                -1, true, false, plan->hash, bits_of(*plan)},
      .title = "cgx:all_gather",
      .inputs = {input},
      .outputs = {output},
      .memory = with({in, out, output}, call.residual),
      .options = call,
      .why = std::move(why),
      .body =
          [executor = &executor_, &engine, in, out, output, plan, bits = call.bits,
           residual = call.residual, key = call.key](const Deadline& deadline, CallRecord& record) {
            executor->run_plan(engine, plan, bits, in.data_ptr(), out.data_ptr(), false, deadline,
                               record, residual_of(residual), key);
            if (!out.is_same(output)) output.copy_(out);
          },
  });
}

}  // namespace cgx
