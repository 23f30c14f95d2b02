// Collectives that are not compressible reductions: handed to the inner backend unchanged.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/process_group_cgx.h"
#include "backend/tensor_memory.h"

namespace cgx {
namespace {

using WorkPtr = ProcessGroupCGX::WorkPtr;
using Tensors = ProcessGroupCGX::Tensors;

// Types that Gloo moves as they are; all others are moved as bytes, which is the same to a data
// movement.
bool gloo_moves(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

bool needs_bytes(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_sparse() && !gloo_moves(tensor.scalar_type());
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "cgx: a tensor of type ", tensor.scalar_type(),
              " must be contiguous to be moved");
  at::Tensor flat = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  return flat.view({-1}).view(at::kByte);
}

Tensors as_bytes(const Tensors& tensors) {
  Tensors views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(as_bytes(tensor));
  return views;
}

std::vector<Tensors> as_bytes(const std::vector<Tensors>& lists) {
  std::vector<Tensors> views;
  views.reserve(lists.size());
  for (const Tensors& list : lists) views.push_back(as_bytes(list));
  return views;
}

Tensors flatten(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Runs a data movement on byte views where the type asks for it; the returned work shows the
// caller's tensors.
template <typename Run>
WorkPtr move(const at::Tensor& probe, c10d::OpType op, const Tensors& outputs, const Run& run) {
  if (!needs_bytes(probe)) return run(false);
  return c10::make_intrusive<ForwardedWork>(run(true), op, outputs);
}

const at::Tensor& first_of(const Tensors& tensors) {
  TORCH_CHECK(!tensors.empty(), "cgx: the list of tensors is empty");
  return tensors.front();
}

void wait_until(c10d::Work& work, const Deadline& deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
  // Gloo takes 0 as "no timeout given".
  work.wait(std::max(left, std::chrono::milliseconds(1)));
}

// Gloo looks at the first dimension of what it scatters, and takes for granted that there is one.
at::Tensor with_dimension(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? tensor.view({1}) : tensor;
}

void check_reducible(const char* what, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_TYPE(!needs_bytes(tensor) || tensor.is_complex(), "cgx: ", what,
                     " of a tensor of type ", tensor.scalar_type(),
                     " is not supported; float32, float16, bfloat16, float64, int8, uint8, int32, ",
                     "int64 and bool are (convert it first)");
  }
}

}  // namespace

WorkPtr ProcessGroupCGX::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  check_usable("all_reduce");
  return track(inner_->allreduce(tensors, opts));
}

WorkPtr ProcessGroupCGX::through_copies(c10d::OpType op, const char* title, const Tensors& tensors,
                                        std::chrono::milliseconds timeout,
                                        const std::function<WorkPtr(Tensors&)>& run) {
  Tensors dense = readable(tensors);
  // Posted on this thread: Gloo numbers its calls, and all ranks make them in this order.
  WorkPtr work = run(dense);
  const bool own = std::equal(dense.begin(), dense.end(), tensors.begin(),
                              [](const auto& a, const auto& b) { return a.is_same(b); });
  if (own) return track(work);
  return enqueue(op, title, tensors, tensors, timeout,
                 [work, dense, tensors](const Deadline& deadline) {
                   wait_until(*work, deadline);
                   for (size_t i = 0; i < tensors.size(); ++i) {
                     if (!dense[i].is_same(tensors[i])) tensors[i].copy_(dense[i]);
                   }
                 });
}

WorkPtr ProcessGroupCGX::forward_all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  check_writable("all_reduce", tensors);
  return through_copies(c10d::OpType::ALLREDUCE, "cgx:all_reduce", tensors, opts.timeout,
                        [&](Tensors& dense) { return inner_->allreduce(dense, opts); });
}

WorkPtr ProcessGroupCGX::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  check_usable("broadcast");
  check_writable("broadcast", tensors);
  const auto run = [&](Tensors& dense) {
    return move(first_of(dense), c10d::OpType::BROADCAST, dense, [&](bool bytes) {
      Tensors views = bytes ? as_bytes(dense) : dense;
      return inner_->broadcast(views, opts);
    });
  };
  return through_copies(c10d::OpType::BROADCAST, "cgx:broadcast", tensors, opts.timeout, run);
}

WorkPtr ProcessGroupCGX::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  check_usable("reduce");
  check_reducible("reduce", tensors);
  check_writable("reduce", tensors);
  return through_copies(c10d::OpType::REDUCE, "cgx:reduce", tensors, opts.timeout,
                        [&](Tensors& dense) { return inner_->reduce(dense, opts); });
}

WorkPtr ProcessGroupCGX::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& opts) {
  check_usable("all_gather");
  check_writable("all_gather", outputs);
  const Tensors sent = readable(inputs);
  return track(move(first_of(sent), c10d::OpType::ALLGATHER, flatten(outputs), [&](bool bytes) {
    auto out = bytes ? as_bytes(outputs) : outputs;
    Tensors in = bytes ? as_bytes(sent) : sent;
    return inner_->allgather(out, in, opts);
  }));
}

WorkPtr ProcessGroupCGX::forward_all_gather(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& opts) {
  check_writable("all_gather", output);
  const at::Tensor sent = readable(input);
  return move(sent, c10d::OpType::_ALLGATHER_BASE, {output}, [&](bool bytes) {
    at::Tensor out = bytes ? as_bytes(output) : output;
    at::Tensor in = bytes ? as_bytes(sent) : sent;
    return inner_->_allgather_base(out, in, opts);
  });
}

WorkPtr ProcessGroupCGX::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  check_usable("all_gather_coalesced");
  check_writable("all_gather_coalesced", outputs);
  const Tensors sent = readable(inputs);
  return track(
      move(first_of(sent), c10d::OpType::ALLGATHER_COALESCED, flatten(outputs), [&](bool bytes) {
        auto out = bytes ? as_bytes(outputs) : outputs;
        Tensors in = bytes ? as_bytes(sent) : sent;
        return inner_->allgather_coalesced(out, in, opts);
      }));
}

WorkPtr ProcessGroupCGX::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::GatherOptions& opts) {
  check_usable("gather");
  check_writable("gather", outputs);
  const Tensors sent = readable(inputs);
  return track(move(first_of(sent), c10d::OpType::GATHER, flatten(outputs), [&](bool bytes) {
    auto out = bytes ? as_bytes(outputs) : outputs;
    Tensors in = bytes ? as_bytes(sent) : sent;
    return inner_->gather(out, in, opts);
  }));
}

WorkPtr ProcessGroupCGX::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ScatterOptions& opts) {
  check_usable("scatter");
  check_writable("scatter", outputs);
  const std::vector<Tensors> sent = readable(inputs);
  const auto run = [&](Tensors& dense) {
    return move(first_of(dense), c10d::OpType::SCATTER, dense, [&](bool bytes) {
      Tensors out = bytes ? as_bytes(dense) : dense;
      auto in = bytes ? as_bytes(sent) : sent;
      return inner_->scatter(out, in, opts);
    });
  };
  return through_copies(c10d::OpType::SCATTER, "cgx:scatter", outputs, opts.timeout, run);
}

WorkPtr ProcessGroupCGX::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& opts) {
  check_usable("reduce_scatter");
  check_reducible("reduce_scatter", outputs);
  check_writable("reduce_scatter", outputs);
  std::vector<Tensors> sent = readable(inputs);
  return track(inner_->reduce_scatter(outputs, sent, opts));
}

WorkPtr ProcessGroupCGX::forward_reduce_scatter(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  check_reducible("reduce_scatter", {input});
  check_writable("reduce_scatter", output);
  at::Tensor out = with_dimension(output), in = with_dimension(readable(input));
  return track(inner_->_reduce_scatter_base(out, in, opts));
}

WorkPtr ProcessGroupCGX::forward_all_to_all(at::Tensor& output, at::Tensor& input,
                                            std::vector<int64_t>& output_splits,
                                            std::vector<int64_t>& input_splits,
                                            const c10d::AllToAllOptions& opts) {
  if (!needs_bytes(input)) {
    return inner_->alltoall_base(output, input, output_splits, input_splits, opts);
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
  return c10::make_intrusive<ForwardedWork>(
      inner_->alltoall_base(out, in, output_splits, input_splits, opts),
      c10d::OpType::ALLTOALL_BASE, Tensors{output});
}

WorkPtr ProcessGroupCGX::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const c10d::AllToAllOptions& opts) {
  check_usable("all_to_all_single");
  check_writable("all_to_all_single", output);
  for (const auto& [tensor, splits] : {std::pair(output, output_splits), {input, input_splits}}) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    TORCH_CHECK_VALUE(!splits.empty() || rows % size_ == 0, "cgx: all_to_all_single of ", rows,
                      " rows on ", size_, " ranks; expected a multiple, or split sizes");
  }
  at::Tensor out = with_dimension(output), in = with_dimension(readable(input));
  return track(forward_all_to_all(out, in, output_splits, input_splits, opts));
}

// CPU tensors go through one buffer, as an all-to-all of a single tensor: Gloo has none of lists
// before torch 2.12, and one for equal sizes only after.
WorkPtr ProcessGroupCGX::alltoall(Tensors& outputs, Tensors& inputs,
                                  const c10d::AllToAllOptions& opts) {
  check_usable("all_to_all");
  check_writable("all_to_all", outputs);
  if (!first_of(inputs).device().is_cpu()) {
    return track(move(inputs.front(), c10d::OpType::ALLTOALL, outputs, [&](bool bytes) {
      Tensors out = bytes ? as_bytes(outputs) : outputs;
      Tensors in = bytes ? as_bytes(inputs) : inputs;
      return inner_->alltoall(out, in, opts);
    }));
  }
  const size_t ranks = static_cast<size_t>(size_);
  TORCH_CHECK_VALUE(inputs.size() == ranks && outputs.size() == ranks, "cgx: all_to_all of ",
                    inputs.size(), " inputs and ", outputs.size(), " outputs on ", size_,
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
  return enqueue(c10d::OpType::ALLTOALL, "cgx:all_to_all", inputs, outputs, opts.timeout,
                 [work, in, out, outputs, splits_of](const Deadline& deadline) {
                   wait_until(*work, deadline);
                   const Tensors parts = out.split_with_sizes(splits_of(outputs));
                   for (size_t i = 0; i < outputs.size(); ++i) {
                     outputs[i].copy_(parts[i].view(outputs[i].sizes()));
                   }
                 });
}

WorkPtr ProcessGroupCGX::send(Tensors& tensors, int peer, int tag) {
  check_usable("send");
  const Tensors sent = readable(tensors);
  Tensors views = needs_bytes(first_of(sent)) ? as_bytes(sent) : sent;
  return track(inner_->send(views, peer, tag));
}

WorkPtr ProcessGroupCGX::recv(Tensors& tensors, int peer, int tag) {
  check_usable("recv");
  check_writable("recv", tensors);
  Tensors views = needs_bytes(first_of(tensors)) ? as_bytes(tensors) : tensors;
  return track(inner_->recv(views, peer, tag));
}

WorkPtr ProcessGroupCGX::recvAnysource(Tensors& tensors, int tag) {
  check_usable("recv");
  check_writable("recv", tensors);
  Tensors views = needs_bytes(first_of(tensors)) ? as_bytes(tensors) : tensors;
  return track(inner_->recvAnysource(views, tag));
}

WorkPtr ProcessGroupCGX::barrier(const c10d::BarrierOptions& opts) {
  check_usable("barrier");
  return track(inner_->barrier(opts));
}

}  // namespace cgx
