// Collectives that reduce nothing: tensors of the host on the engine, others on the inner backend.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <utility>

#include "backend/inner/gloo_tensors.h"
#include "backend/process_group_cgx.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

int64_t values_of(const Tensors& tensors) {
  int64_t values = 0;
  for (const at::Tensor& tensor : tensors) values += tensor.numel();
  return values;
}

CallShape shape_of(c10d::OpType op, const Tensors& tensors, int root = -1) {
  const at::Tensor& first = first_of(tensors);
  CallShape shape{op, std::nullopt, first.scalar_type(), values_of(tensors), root};
  shape.cuda = first.is_cuda();
  return shape;
}

// Ranks may hold different numbers of values.
CallShape uneven_shape_of(c10d::OpType op, const Tensors& tensors) {
  CallShape shape = shape_of(op, tensors);
  shape.values = CallShape::kUneven;
  return shape;
}

}  // namespace

WorkPtr ProcessGroupCGX::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  CallShape shape = uneven_shape_of(c10d::OpType::ALLREDUCE, tensors);
  shape.reduce = opts.reduceOp.op_;
  return forwarder_->forward(shape, tensors, tensors, opts.timeout, [&] {
    return forwarder_->backend_for(first_of(tensors))->allreduce(tensors, opts);
  });
}

// As NCCL does it, in the type of the tensor. Gloo would divide into a float, and fail.
ProcessGroupCGX::InnerReduction ProcessGroupCGX::inner_reduction(const char* what,
                                                                 const c10d::ReduceOp& op,
                                                                 const at::Tensor& tensor) const {
  if (op.op_ != c10d::ReduceOp::AVG) return {op, nullptr};
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK_TYPE(type != at::kBool, "cgx: ", what,
                   " AVG of a bool tensor is not supported; SUM (any of them), MIN and MAX are");
  if (!c10::isIntegralType(type, false) || (tensor.is_cuda() && inner_->gpu_has_nccl())) {
    return {op, nullptr};
  }
  return {c10d::ReduceOp::SUM, [ranks = group_.size](Tensors& sums) {
            for (at::Tensor& sum : sums) sum.div_(ranks, "trunc");
          }};
}

WorkPtr ProcessGroupCGX::forward_all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (first_of(tensors).is_sparse()) return allreduce_sparse(tensors, opts);
  check_writable("all_reduce", tensors);
  CallShape shape = shape_of(c10d::OpType::ALLREDUCE, tensors);
  shape.reduce = opts.reduceOp.op_;
  c10d::AllreduceOptions inner = opts;
  auto [op, last] = inner_reduction("all_reduce", opts.reduceOp, first_of(tensors));
  inner.reduceOp = op;
  return forwarder_->through_copies(
      shape, "cgx:all_reduce", tensors, tensors, true, opts.timeout,
      [&](Tensors& dense) {
        return forwarder_->backend_for(first_of(dense))->allreduce(dense, inner);
      },
      last);
}

WorkPtr ProcessGroupCGX::forward_reduce_scatter(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  check_reducible("reduce_scatter", {input});
  check_same_type("reduce_scatter", {output}, input);
  check_writable("reduce_scatter", output);
  CallShape shape = shape_of(c10d::OpType::_REDUCE_SCATTER_BASE, {input});
  shape.reduce = opts.reduceOp.op_;
  c10d::ReduceScatterOptions inner = opts;
  auto [op, last] = inner_reduction("reduce_scatter", opts.reduceOp, input);
  inner.reduceOp = op;
  at::Tensor in = with_dimension(readable(input));
  return forwarder_->through_copies(
      shape, "cgx:reduce_scatter", {input}, {output}, false, opts.timeout,
      [&](Tensors& dense) {
        at::Tensor out = with_dimension(dense.front());
        return forwarder_->backend_for(out)->_reduce_scatter_base(out, in, inner);
      },
      last);
}

WorkPtr ProcessGroupCGX::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  executor_->check_usable("broadcast");
  if (tensors.size() == 1 && move_calls_->serves(tensors)) {
    return executor_->run(move_calls_->broadcast(tensors.front(), opts.rootRank, raw_codec(),
                                                 {opts.timeout, opts.asyncOp}, ""));
  }
  check_root("broadcast", opts.rootRank, group_.size);
  check_writable("broadcast", tensors);
  return forwarder_->through_copies(
      shape_of(c10d::OpType::BROADCAST, tensors, static_cast<int>(opts.rootRank)), "cgx:broadcast",
      tensors, tensors, true, opts.timeout, [&](Tensors& dense) {
        Tensors views = needs_bytes(first_of(dense)) ? as_bytes(dense) : dense;
        return forwarder_->backend_for(first_of(views))->broadcast(views, opts);
      });
}

WorkPtr ProcessGroupCGX::forward_reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  check_reducible("reduce", tensors);
  CallShape shape = shape_of(c10d::OpType::REDUCE, tensors, static_cast<int>(opts.rootRank));
  shape.reduce = opts.reduceOp.op_;
  c10d::ReduceOptions inner = opts;
  auto [op, last] = inner_reduction("reduce", opts.reduceOp, first_of(tensors));
  inner.reduceOp = op;
  if (group_.rank != opts.rootRank) last = nullptr;
  return forwarder_->through_copies(
      shape, "cgx:reduce", tensors, tensors, true, opts.timeout,
      [&](Tensors& dense) {
        return forwarder_->backend_for(first_of(dense))->reduce(dense, inner);
      },
      last);
}

WorkPtr ProcessGroupCGX::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& opts) {
  executor_->check_usable("all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "cgx: all_gather: expected one list of outputs");
  const at::Tensor& input = single("all_gather", inputs);
  if (move_calls_->serves(input) && move_calls_->serves(outputs.front())) {
    return executor_->run(
        move_calls_->all_gather(outputs.front(), input, {opts.timeout, opts.asyncOp}));
  }
  check_list("all_gather", "outputs", outputs.front().size(), static_cast<size_t>(group_.size));
  check_alike("all_gather", outputs.front(), first_of(inputs));
  check_writable("all_gather", outputs);
  const Tensors sent = readable(inputs);
  return forwarder_->through_copies(
      shape_of(c10d::OpType::ALLGATHER, inputs), "cgx:all_gather", inputs, outputs.front(), false,
      opts.timeout, [&](Tensors& dense) {
        const bool bytes = needs_bytes(first_of(sent));
        std::vector<Tensors> out = {bytes ? as_bytes(dense) : dense};
        Tensors in = bytes ? as_bytes(sent) : sent;
        return forwarder_->backend_for(first_of(in))->allgather(out, in, opts);
      });
}

WorkPtr ProcessGroupCGX::forward_all_gather(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& opts) {
  if (move_calls_->serves({input, output})) {
    return executor_->run(
        move_calls_->all_gather_single(output, input, {opts.timeout, opts.asyncOp}));
  }
  check_same_type("all_gather", {output}, input);
  check_writable("all_gather", output);
  const at::Tensor sent = readable(input);
  return forwarder_->through_copies(
      shape_of(c10d::OpType::_ALLGATHER_BASE, {output}), "cgx:all_gather", {input}, {output}, false,
      opts.timeout, [&](Tensors& dense) {
        const bool bytes = needs_bytes(sent);
        at::Tensor out = bytes ? as_bytes(dense.front()) : dense.front();
        at::Tensor in = bytes ? as_bytes(sent) : sent;
        return forwarder_->backend_for(in)->_allgather_base(out, in, opts);
      });
}

WorkPtr ProcessGroupCGX::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  executor_->check_usable("all_gather_coalesced");
  if (move_calls_->serves(inputs) && move_calls_->serves(flatten(outputs))) {
    return executor_->run(
        move_calls_->all_gather_coalesced(outputs, inputs, {opts.timeout, opts.asyncOp}));
  }
  check_same_type("all_gather_coalesced", inputs, first_of(inputs));
  check_same_type("all_gather_coalesced", flatten(outputs), first_of(inputs));
  check_writable("all_gather_coalesced", outputs);
  const Tensors sent = readable(inputs);
  return forwarder_->through_copies(
      shape_of(c10d::OpType::ALLGATHER_COALESCED, inputs), "cgx:all_gather", inputs,
      flatten(outputs), false, opts.timeout, [&](Tensors& dense) {
        const bool bytes = needs_bytes(first_of(sent));
        std::vector<Tensors> out;
        auto next = dense.begin();
        for (const Tensors& list : outputs) {
          Tensors part(next, next + static_cast<ptrdiff_t>(list.size()));
          next += static_cast<ptrdiff_t>(list.size());
          out.push_back(bytes ? as_bytes(part) : part);
        }
        Tensors in = bytes ? as_bytes(sent) : sent;
        return forwarder_->backend_for(first_of(in))->allgather_coalesced(out, in, opts);
      });
}

WorkPtr ProcessGroupCGX::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::GatherOptions& opts) {
  executor_->check_usable("gather");
  const Tensors list = flatten(outputs);
  if (move_calls_->serves(single("gather", inputs)) &&
      (list.empty() || move_calls_->serves(list))) {
    return executor_->run(
        move_calls_->gather(outputs, inputs.front(), opts.rootRank, {opts.timeout, opts.asyncOp}));
  }
  check_root("gather", opts.rootRank, group_.size);
  check_lists("gather", "outputs", outputs, group_.rank, opts.rootRank, group_.size);
  check_alike("gather", flatten(outputs), first_of(inputs));
  check_writable("gather", outputs);
  const Tensors sent = readable(inputs);
  return forwarder_->through_copies(
      shape_of(c10d::OpType::GATHER, inputs, static_cast<int>(opts.rootRank)), "cgx:gather", inputs,
      flatten(outputs), false, opts.timeout, [&](Tensors& dense) {
        const bool bytes = needs_bytes(first_of(sent));
        std::vector<Tensors> out(outputs.size());  // none, or that of the root
        if (!out.empty()) out.front() = bytes ? as_bytes(dense) : dense;
        Tensors in = bytes ? as_bytes(sent) : sent;
        return forwarder_->backend_for(first_of(in))->gather(out, in, opts);
      });
}

WorkPtr ProcessGroupCGX::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ScatterOptions& opts) {
  executor_->check_usable("scatter");
  const Tensors list = flatten(inputs);
  if (move_calls_->serves(single("scatter", outputs)) &&
      (list.empty() || move_calls_->serves(list))) {
    return executor_->run(
        move_calls_->scatter(outputs.front(), inputs, opts.rootRank, {opts.timeout, opts.asyncOp}));
  }
  check_root("scatter", opts.rootRank, group_.size);
  check_lists("scatter", "inputs", inputs, group_.rank, opts.rootRank, group_.size);
  check_alike("scatter", flatten(inputs), first_of(outputs));
  check_writable("scatter", outputs);
  const std::vector<Tensors> sent = readable(inputs);
  return forwarder_->through_copies(
      shape_of(c10d::OpType::SCATTER, outputs, static_cast<int>(opts.rootRank)), "cgx:scatter",
      flatten(inputs), outputs, false, opts.timeout, [&](Tensors& dense) {
        const bool bytes = needs_bytes(first_of(dense));
        Tensors out = bytes ? as_bytes(dense) : dense;
        auto in = bytes ? as_bytes(sent) : sent;
        return forwarder_->backend_for(first_of(out))->scatter(out, in, opts);
      });
}

WorkPtr ProcessGroupCGX::forward_reduce_scatter_list(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  check_reducible("reduce_scatter", outputs);
  CallShape shape = uneven_shape_of(c10d::OpType::REDUCE_SCATTER, outputs);
  shape.reduce = opts.reduceOp.op_;
  c10d::ReduceScatterOptions inner = opts;
  auto [op, last] = inner_reduction("reduce_scatter", opts.reduceOp, first_of(outputs));
  inner.reduceOp = op;
  std::vector<Tensors> sent = readable(inputs);
  return forwarder_->through_copies(
      shape, "cgx:reduce_scatter", flatten(inputs), outputs, false, opts.timeout,
      [&](Tensors& dense) {
        return forwarder_->backend_for(first_of(dense))->reduce_scatter(dense, sent, inner);
      },
      last);
}

// `input` is dense; both have a first dimension.
WorkPtr ProcessGroupCGX::forward_all_to_all(const at::Tensor& output, const at::Tensor& input,
                                            std::vector<int64_t>& output_splits,
                                            std::vector<int64_t>& input_splits,
                                            const c10d::AllToAllOptions& opts) {
  // Splits count rows of the first dimension: keep it, and turn each row into bytes.
  const auto moved = [](const at::Tensor& tensor) {
    if (!needs_bytes(tensor)) return tensor;
    const int64_t rows = tensor.size(0);
    const int64_t width = rows == 0 ? 0 : tensor.numel() / rows * tensor.element_size();
    return as_bytes(tensor).view({rows, width});
  };
  at::Tensor in = moved(input);
  // The numbers of values are the ranks' own.
  return forwarder_->through_copies(uneven_shape_of(c10d::OpType::ALLTOALL_BASE, {input}),
                                    "cgx:all_to_all", {input}, {output}, false, opts.timeout,
                                    [&](Tensors& dense) {
                                      at::Tensor out = moved(dense.front());
                                      return forwarder_->backend_for(out)->alltoall_base(
                                          out, in, output_splits, input_splits, opts);
                                    });
}

WorkPtr ProcessGroupCGX::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const c10d::AllToAllOptions& opts) {
  executor_->check_usable("all_to_all_single");
  if (move_calls_->serves({output, input})) {
    return executor_->run(move_calls_->all_to_all_single(
        output, input, output_splits, input_splits, raw_codec(), {opts.timeout, opts.asyncOp}, ""));
  }
  check_same_type("all_to_all_single", {output}, input);
  check_writable("all_to_all_single", output);
  for (const auto& [tensor, splits] : {std::pair(output, output_splits), {input, input_splits}}) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    TORCH_CHECK_VALUE(!splits.empty() || rows % group_.size == 0, "cgx: all_to_all_single of ",
                      rows, " rows on ", group_.size,
                      " ranks; expected a multiple, or split sizes");
  }
  return forward_all_to_all(with_dimension(output), with_dimension(readable(input)), output_splits,
                            input_splits, opts);
}

WorkPtr ProcessGroupCGX::alltoall(Tensors& outputs, Tensors& inputs,
                                  const c10d::AllToAllOptions& opts) {
  executor_->check_usable("all_to_all");
  if (move_calls_->serves(outputs) && move_calls_->serves(inputs)) {
    return executor_->run(move_calls_->all_to_all(outputs, inputs, {opts.timeout, opts.asyncOp}));
  }
  check_list("all_to_all", "inputs", inputs.size(), static_cast<size_t>(group_.size));
  check_list("all_to_all", "outputs", outputs.size(), static_cast<size_t>(group_.size));
  for (const Tensors* tensors : {&inputs, &outputs}) {
    check_same_type("all_to_all", *tensors, inputs.front());
  }
  check_writable("all_to_all", outputs);
  const Tensors sent = readable(inputs);
  return forwarder_->through_copies(
      uneven_shape_of(c10d::OpType::ALLTOALL, inputs), "cgx:all_to_all", inputs, outputs, false,
      opts.timeout, [&](Tensors& dense) {
        const bool bytes = needs_bytes(first_of(sent));
        Tensors out = bytes ? as_bytes(dense) : dense;
        Tensors in = bytes ? as_bytes(sent) : sent;
        return forwarder_->backend_for(first_of(out))->alltoall(out, in, opts);
      });
}

WorkPtr ProcessGroupCGX::barrier(const c10d::BarrierOptions& opts) {
  executor_->check_usable("barrier");
  return executor_->run(move_calls_->barrier({opts.timeout, opts.asyncOp}));
}

}  // namespace cgx
