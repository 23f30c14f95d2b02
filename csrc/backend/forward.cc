// Collectives that are not compressible reductions: handed to the inner backend unchanged.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <numeric>
#include <utility>

#include "backend/adapters/tensor_memory.h"
#include "backend/inner/gloo_tensors.h"
#include "backend/process_group_cgx.h"

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
  return forwarder_->forward(shape, tensors, tensors, opts.timeout, false, [&] {
    return forwarder_->backend_for(first_of(tensors))->allreduce(tensors, opts);
  });
}

WorkPtr ProcessGroupCGX::forward_all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (first_of(tensors).is_sparse()) return allreduce_sparse(tensors, opts);
  check_writable("all_reduce", tensors);
  CallShape shape = shape_of(c10d::OpType::ALLREDUCE, tensors);
  shape.reduce = opts.reduceOp.op_;
  return forwarder_->through_copies(
      shape, "cgx:all_reduce", tensors, opts.timeout, [&](Tensors& dense) {
        return forwarder_->backend_for(first_of(dense))->allreduce(dense, opts);
      });
}

WorkPtr ProcessGroupCGX::forward_reduce_scatter(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  check_reducible("reduce_scatter", {input});
  check_writable("reduce_scatter", output);
  CallShape shape = shape_of(c10d::OpType::_REDUCE_SCATTER_BASE, {input});
  shape.reduce = opts.reduceOp.op_;
  at::Tensor out = with_dimension(output), in = with_dimension(readable(input));
  return forwarder_->forward(shape, {input}, {output}, opts.timeout, true, [&] {
    return forwarder_->backend_for(out)->_reduce_scatter_base(out, in, opts);
  });
}

WorkPtr ProcessGroupCGX::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  check_root("broadcast", opts.rootRank, group_.size);
  check_writable("broadcast", tensors);
  return forwarder_->through_copies(
      shape_of(c10d::OpType::BROADCAST, tensors, static_cast<int>(opts.rootRank)), "cgx:broadcast",
      tensors, opts.timeout, [&](Tensors& dense) {
        Tensors views = needs_bytes(first_of(dense)) ? as_bytes(dense) : dense;
        return forwarder_->backend_for(first_of(views))->broadcast(views, opts);
      });
}

WorkPtr ProcessGroupCGX::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  check_root("reduce", opts.rootRank, group_.size);
  check_reducible("reduce", tensors);
  check_writable("reduce", tensors);
  CallShape shape = shape_of(c10d::OpType::REDUCE, tensors, static_cast<int>(opts.rootRank));
  shape.reduce = opts.reduceOp.op_;
  return forwarder_->through_copies(
      shape, "cgx:reduce", tensors, opts.timeout, [&](Tensors& dense) {
        return forwarder_->backend_for(first_of(dense))->reduce(dense, opts);
      });
}

WorkPtr ProcessGroupCGX::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == 1, "cgx: all_gather: expected one list of outputs");
  check_list("all_gather", "outputs", outputs.front().size(), static_cast<size_t>(group_.size));
  check_alike("all_gather", outputs.front(), first_of(inputs));
  check_writable("all_gather", outputs);
  const Tensors sent = readable(inputs);
  const bool bytes = needs_bytes(first_of(sent));
  auto out = bytes ? as_bytes(outputs) : outputs;
  Tensors in = bytes ? as_bytes(sent) : sent;
  return forwarder_->forward(
      shape_of(c10d::OpType::ALLGATHER, inputs), inputs, flatten(outputs), opts.timeout, bytes,
      [&] { return forwarder_->backend_for(first_of(in))->allgather(out, in, opts); });
}

WorkPtr ProcessGroupCGX::forward_all_gather(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& opts) {
  check_writable("all_gather", output);
  const at::Tensor sent = readable(input);
  const bool bytes = needs_bytes(sent);
  at::Tensor out = bytes ? as_bytes(output) : output;
  at::Tensor in = bytes ? as_bytes(sent) : sent;
  return forwarder_->forward(
      shape_of(c10d::OpType::_ALLGATHER_BASE, {output}), {input}, {output}, opts.timeout, bytes,
      [&] { return forwarder_->backend_for(in)->_allgather_base(out, in, opts); });
}

WorkPtr ProcessGroupCGX::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  check_writable("all_gather_coalesced", outputs);
  const Tensors sent = readable(inputs);
  const bool bytes = needs_bytes(first_of(sent));
  auto out = bytes ? as_bytes(outputs) : outputs;
  Tensors in = bytes ? as_bytes(sent) : sent;
  return forwarder_->forward(
      shape_of(c10d::OpType::ALLGATHER_COALESCED, inputs), inputs, flatten(outputs), opts.timeout,
      bytes,
      [&] { return forwarder_->backend_for(first_of(in))->allgather_coalesced(out, in, opts); });
}

WorkPtr ProcessGroupCGX::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::GatherOptions& opts) {
  check_root("gather", opts.rootRank, group_.size);
  check_lists("gather", "outputs", outputs, group_.rank, opts.rootRank, group_.size);
  check_alike("gather", flatten(outputs), first_of(inputs));
  check_writable("gather", outputs);
  const Tensors sent = readable(inputs);
  const bool bytes = needs_bytes(first_of(sent));
  auto out = bytes ? as_bytes(outputs) : outputs;
  Tensors in = bytes ? as_bytes(sent) : sent;
  return forwarder_->forward(
      shape_of(c10d::OpType::GATHER, inputs, static_cast<int>(opts.rootRank)), inputs,
      flatten(outputs), opts.timeout, bytes,
      [&] { return forwarder_->backend_for(first_of(in))->gather(out, in, opts); });
}

WorkPtr ProcessGroupCGX::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ScatterOptions& opts) {
  check_root("scatter", opts.rootRank, group_.size);
  check_lists("scatter", "inputs", inputs, group_.rank, opts.rootRank, group_.size);
  check_alike("scatter", flatten(inputs), first_of(outputs));
  check_writable("scatter", outputs);
  const std::vector<Tensors> sent = readable(inputs);
  return forwarder_->through_copies(
      shape_of(c10d::OpType::SCATTER, outputs, static_cast<int>(opts.rootRank)), "cgx:scatter",
      outputs, opts.timeout, [&](Tensors& dense) {
        const bool bytes = needs_bytes(first_of(dense));
        Tensors out = bytes ? as_bytes(dense) : dense;
        auto in = bytes ? as_bytes(sent) : sent;
        return forwarder_->backend_for(first_of(out))->scatter(out, in, opts);
      });
}

WorkPtr ProcessGroupCGX::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& opts) {
  check_reducible("reduce_scatter", outputs);
  check_writable("reduce_scatter", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, "cgx: reduce_scatter: expected one list of inputs");
  check_list("reduce_scatter", "inputs", inputs.front().size(), static_cast<size_t>(group_.size));
  // The parts may be of different lengths.
  CallShape shape = uneven_shape_of(c10d::OpType::REDUCE_SCATTER, outputs);
  shape.reduce = opts.reduceOp.op_;
  std::vector<Tensors> sent = readable(inputs);
  return forwarder_->forward(shape, flatten(inputs), outputs, opts.timeout, false, [&] {
    return forwarder_->backend_for(first_of(outputs))->reduce_scatter(outputs, sent, opts);
  });
}

WorkPtr ProcessGroupCGX::forward_all_to_all(at::Tensor& output, at::Tensor& input,
                                            std::vector<int64_t>& output_splits,
                                            std::vector<int64_t>& input_splits,
                                            const c10d::AllToAllOptions& opts) {
  // The numbers of values are the ranks' own.
  const CallShape shape = uneven_shape_of(c10d::OpType::ALLTOALL_BASE, {input});
  if (!needs_bytes(input)) {
    return forwarder_->forward(shape, {input}, {output}, opts.timeout, false, [&] {
      return forwarder_->backend_for(output)->alltoall_base(output, input, output_splits,
                                                            input_splits, opts);
    });
  }
  // Splits count rows of the first dimension: keep it, and turn each row into bytes.
  auto rows = [](const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_contiguous(), "cgx: a tensor of type ", tensor.scalar_type(),
                " must be contiguous to be moved");
    const int64_t n = tensor.dim() == 0 ? 1 : tensor.size(0);
    const int64_t width = n == 0 ? 0 : tensor.numel() / n * tensor.element_size();
    return as_bytes(tensor).view({n, width});
  };
  at::Tensor out = rows(output), in = rows(input);
  return forwarder_->forward(shape, {input}, {output}, opts.timeout, true, [&] {
    return forwarder_->backend_for(out)->alltoall_base(out, in, output_splits, input_splits, opts);
  });
}

WorkPtr ProcessGroupCGX::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const c10d::AllToAllOptions& opts) {
  check_writable("all_to_all_single", output);
  for (const auto& [tensor, splits] : {std::pair(output, output_splits), {input, input_splits}}) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    TORCH_CHECK_VALUE(!splits.empty() || rows % group_.size == 0, "cgx: all_to_all_single of ",
                      rows, " rows on ", group_.size,
                      " ranks; expected a multiple, or split sizes");
  }
  at::Tensor out = with_dimension(output), in = with_dimension(readable(input));
  return forward_all_to_all(out, in, output_splits, input_splits, opts);
}

// CPU tensors go through one buffer, as an all-to-all of a single tensor: Gloo has none of lists
// before torch 2.12, and one for equal sizes only after.
WorkPtr ProcessGroupCGX::alltoall(Tensors& outputs, Tensors& inputs,
                                  const c10d::AllToAllOptions& opts) {
  executor_->check_usable("all_to_all");
  check_writable("all_to_all", outputs);
  if (!first_of(inputs).device().is_cpu()) {
    const bool bytes = needs_bytes(inputs.front());
    Tensors out = bytes ? as_bytes(outputs) : outputs;
    Tensors in = bytes ? as_bytes(inputs) : inputs;
    return forwarder_->forward(
        uneven_shape_of(c10d::OpType::ALLTOALL, inputs), inputs, outputs, opts.timeout, bytes,
        [&] { return forwarder_->backend_for(first_of(out))->alltoall(out, in, opts); });
  }
  const size_t ranks = static_cast<size_t>(group_.size);
  TORCH_CHECK_VALUE(inputs.size() == ranks && outputs.size() == ranks, "cgx: all_to_all of ",
                    inputs.size(), " inputs and ", outputs.size(), " outputs on ", group_.size,
                    " ranks; expected one of each per rank");
  const auto splits_of = [](const Tensors& tensors) {
    std::vector<int64_t> splits;
    for (const at::Tensor& tensor : tensors) splits.push_back(tensor.numel());
    return splits;
  };
  std::vector<int64_t> output_splits = splits_of(outputs), input_splits = splits_of(inputs);
  const auto buffer_for = [](const std::vector<int64_t>& splits, const at::Tensor& like) {
    return at::empty({std::accumulate(splits.begin(), splits.end(), int64_t{0})}, like.options());
  };
  at::Tensor out = buffer_for(output_splits, outputs.front());
  at::Tensor in = buffer_for(input_splits, inputs.front());
  {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const Tensors parts = in.split_with_sizes(input_splits);
    for (size_t i = 0; i < ranks; ++i) parts[i].copy_(inputs[i].reshape({-1}));
  }
  // Posted on this thread: Gloo numbers its calls, and all ranks make them in this order. It takes
  // the splits away.
  WorkPtr work = forward_all_to_all(out, in, output_splits, input_splits, opts);
  return forwarder_->after("cgx:all_to_all", work, outputs, {in, out}, opts.timeout,
                           [in, out, outputs, splits_of] {
                             const Tensors parts = out.split_with_sizes(splits_of(outputs));
                             for (size_t i = 0; i < outputs.size(); ++i) {
                               outputs[i].copy_(parts[i].view(outputs[i].sizes()));
                             }
                           });
}

WorkPtr ProcessGroupCGX::send(Tensors& tensors, int peer, int tag) {
  const Tensors sent = readable(tensors);
  const bool bytes = needs_bytes(first_of(sent));
  Tensors views = bytes ? as_bytes(sent) : sent;
  return forwarder_->forward(
      shape_of(c10d::OpType::SEND, tensors, peer), tensors, {}, c10d::kUnsetTimeout, false,
      [&] { return forwarder_->backend_for_batch(first_of(views))->send(views, peer, tag); });
}

WorkPtr ProcessGroupCGX::recv(Tensors& tensors, int peer, int tag) {
  check_writable("recv", tensors);
  const bool bytes = needs_bytes(first_of(tensors));
  Tensors views = bytes ? as_bytes(tensors) : tensors;
  return forwarder_->forward(
      shape_of(c10d::OpType::RECV, tensors, peer), {}, tensors, c10d::kUnsetTimeout, bytes,
      [&] { return forwarder_->backend_for_batch(first_of(views))->recv(views, peer, tag); });
}

WorkPtr ProcessGroupCGX::recvAnysource(Tensors& tensors, int tag) {
  check_writable("recv", tensors);
  const bool bytes = needs_bytes(first_of(tensors));
  Tensors views = bytes ? as_bytes(tensors) : tensors;
  return forwarder_->forward(
      shape_of(c10d::OpType::RECVANYSOURCE, tensors), {}, tensors, c10d::kUnsetTimeout, bytes,
      [&] { return forwarder_->backend_for(first_of(views))->recvAnysource(views, tag); });
}

WorkPtr ProcessGroupCGX::barrier(const c10d::BarrierOptions& opts) {
  CallShape shape;
  shape.op = c10d::OpType::BARRIER;
  return forwarder_->forward(shape, {}, {}, opts.timeout, false,
                             [&] { return inner_->gloo()->barrier(opts); });
}

}  // namespace cgx
