// Reductions and gathers called through torch or torch_cgx. Reductions of tensors on the CPU go to
// the engine, and what it can compress of tensors on a GPU; all others go to the inner backend.
#include <algorithm>
#include <utility>

#include "backend/inner/gloo_tensors.h"
#include "backend/process_group_cgx.h"
#include "backend/work/works.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

// The reason for the codec of an explicit call, for the log.
std::string given(const CallOptions& call) {
  return call.chosen_by.empty() ? "given by the call" : "chosen by " + call.chosen_by;
}

bool is_sum(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::AVG;
}

constexpr char kExact[] = "exact values";

// True for values that codecs take: sums, which an average and premultiplied ones are, too.
bool compressible(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const bool premultiplied = op.op_ == c10d::ReduceOp::PREMUL_SUM && tensor.device().is_cpu();
  return (is_sum(op) || premultiplied) && engine_dtype(tensor).has_value();
}

// True for reductions that the engine runs, of exact values if not of encoded ones.
bool served(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && reduced_dtype(tensor).has_value();
}

// Dense tensors of the CPU, of a type that is only moved.
void check_reduced(const char* what, const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided) return;
  TORCH_CHECK_TYPE(reduced_dtype(tensor), "cgx: ", what, " of a tensor of type ",
                   tensor.scalar_type(), " is not supported; ", kReduced.text(),
                   " are (convert it first)");
}

std::vector<Layer> exact_layer(const at::Tensor& tensor) {
  return {{static_cast<size_t>(tensor.numel()), raw_codec()}};
}

// A compressed call that the engine cannot serve must not silently become an exact one.
void refuse_compression(const char* what, const at::Tensor& tensor, const c10d::ReduceOp* op) {
  TORCH_CHECK_VALUE(
      false, "cgx: a compressed ", what, " was asked for a ", tensor.scalar_type(), " tensor on ",
      tensor.device(), " with the op ", op != nullptr ? name_of(op->op_) : "(none)",
      "; it takes float32, float16 and bfloat16 tensors on CPU or CUDA, and SUM and AVG. ",
      "Ask for 32 bits, or use an exact collective");
}

// Error feedback is the engine's: a call that the inner backend would serve cannot have it.
void refuse_residual(const char* what, const at::Tensor& tensor, const c10d::ReduceOp* op) {
  TORCH_CHECK_VALUE(false, "cgx: a residual was given to ", what, " of a ", tensor.scalar_type(),
                    " tensor on ", tensor.device(), " with the op ",
                    op != nullptr ? name_of(op->op_) : "(none)",
                    "; allowed: float32, float16 and bfloat16 tensors, SUM and AVG");
}

}  // namespace

void ProcessGroupCGX::refuse_other_devices(const char* what, const at::Tensor& tensor,
                                           const c10d::ReduceOp& op, bool compresses) const {
  const bool compressible = codec_type(tensor.scalar_type()).has_value();
  if (tensor.device().is_cpu() || tensor.is_cuda() || !compressible || !is_sum(op)) return;
  if (policy_->codec_for(compresses, tensor.numel()) == raw_codec()) return;
  refuse_compression(what, tensor, &op);
}

WorkPtr ProcessGroupCGX::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  executor_->check_usable("all_reduce");
  const at::Tensor& tensor = single("all_reduce", tensors);
  if (compressible(tensor, opts.reduceOp)) {
    std::vector<Layer> layers = policy_->layers_for(tensor.numel());
    policy_->notice("all_reduce", tensor.numel(), tensor.nbytes(), layers);
    return executor_->run(engine_calls_->all_reduce(
        tensors, opts.reduceOp, {std::move(layers)}, {opts.timeout, opts.asyncOp, Bits::kTunable},
        policy_->why(group_.config.compress_all_reduce, tensor.numel())));
  }
  refuse_other_devices("all_reduce", tensor, opts.reduceOp, group_.config.compress_all_reduce);
  return all_reduce_exactly(tensors, opts);
}

WorkPtr ProcessGroupCGX::all_reduce_exactly(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = first_of(tensors);
  const auto type = tensor.scalar_type();
  const bool host = tensor.device().is_cpu();
  TORCH_CHECK_TYPE(!at::isFloat8Type(type) &&
                       (host || (type != at::kShort && !c10::isBarebonesUnsignedType(type))),
                   "cgx: all_reduce of a ", type,
                   " tensor is not supported; convert it to int32, int64 or float32 first");
  if (!served(tensor)) return forward_all_reduce(tensors, opts);
  return executor_->run(engine_calls_->all_reduce(tensors, opts.reduceOp, {exact_layer(tensor)},
                                                  {opts.timeout, opts.asyncOp}, kExact));
}

WorkPtr ProcessGroupCGX::allreduce_coalesced(Tensors& tensors,
                                             const c10d::AllreduceCoalescedOptions& opts) {
  executor_->check_usable("all_reduce_coalesced");
  const bool engine = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return served(tensor) || compressible(tensor, opts.reduceOp);
  });
  if (engine && !tensors.empty()) {
    std::vector<std::vector<Layer>> layers;
    for (const at::Tensor& tensor : tensors) {
      if (!compressible(tensor, opts.reduceOp)) {
        layers.push_back(exact_layer(tensor));
        continue;
      }
      layers.push_back(policy_->layers_for(tensor.numel()));
      policy_->notice("all_reduce", tensor.numel(), tensor.nbytes(), layers.back());
    }
    return executor_->run(engine_calls_->all_reduce(
        tensors, opts.reduceOp, layers, {opts.timeout, opts.asyncOp, Bits::kTunable},
        policy_->why(group_.config.compress_all_reduce, tensors.front().numel())));
  }
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) {
    Tensors one = {tensor};
    works.push_back(allreduce(one, opts));
  }
  return c10::make_intrusive<GroupedWork>(std::move(works), tensors);
}

std::shared_ptr<const Codec> ProcessGroupCGX::reduce_scatter_codec_for(
    const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op) const {
  if (!compressible(input, op) || !compressible(output, op)) return raw_codec();
  auto codec = policy_->codec_for(group_.config.compress_reduce_scatter, output.numel());
  policy_->notice("reduce_scatter", output.numel(), output.nbytes(),
                  {{static_cast<size_t>(output.numel()), codec}});
  return codec;
}

WorkPtr ProcessGroupCGX::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& opts) {
  executor_->check_usable("reduce_scatter_tensor");
  if (auto codec = reduce_scatter_codec_for(output, input, opts.reduceOp); codec != raw_codec()) {
    return executor_->run(engine_calls_->reduce_scatter(
        {output}, {input}, opts.reduceOp, {codec}, {opts.timeout, opts.asyncOp, Bits::kTunable},
        policy_->why(true, output.numel())));
  }
  refuse_other_devices("reduce_scatter", output, opts.reduceOp,
                       group_.config.compress_reduce_scatter);
  return reduce_scatter_exactly(output, input, opts);
}

WorkPtr ProcessGroupCGX::reduce_scatter_exactly(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  check_reduced("reduce_scatter", input);
  if (!served(input) || !served(output)) return forward_reduce_scatter(output, input, opts);
  return executor_->run(engine_calls_->reduce_scatter(
      {output}, {input}, opts.reduceOp, {raw_codec()}, {opts.timeout, opts.asyncOp}, kExact));
}

WorkPtr ProcessGroupCGX::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "cgx: reduce_scatter of ", inputs.size(),
                    " inputs into ", outputs.size(), " outputs");
  const auto all_served = [](const Tensors& tensors) {
    return std::all_of(tensors.begin(), tensors.end(), served);
  };
  if (!inputs.empty() && all_served(inputs) && all_served(outputs)) {
    executor_->check_usable("reduce_scatter_tensor");
    std::vector<std::shared_ptr<const Codec>> codecs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      codecs.push_back(reduce_scatter_codec_for(outputs[i], inputs[i], opts.reduceOp));
    }
    return executor_->run(engine_calls_->reduce_scatter(
        outputs, inputs, opts.reduceOp, codecs, {opts.timeout, opts.asyncOp, Bits::kTunable},
        policy_->why(group_.config.compress_reduce_scatter, outputs.front().numel())));
  }
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], opts));
  }
  return c10::make_intrusive<GroupedWork>(std::move(works), outputs);
}

WorkPtr ProcessGroupCGX::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = single("reduce_scatter", outputs);
  check_reduced("reduce_scatter", output);
  check_writable("reduce_scatter", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, "cgx: reduce_scatter: expected one list of inputs");
  const Tensors& parts = inputs.front();
  check_list("reduce_scatter", "inputs", parts.size(), static_cast<size_t>(group_.size));
  check_same_type("reduce_scatter", parts, output);
  // The parts may be of different lengths.
  check_alike("reduce_scatter", {parts[static_cast<size_t>(group_.rank)]}, output);
  if (!served(output) || !std::all_of(parts.begin(), parts.end(), served)) {
    return forward_reduce_scatter_list(outputs, inputs, opts);
  }
  executor_->check_usable("reduce_scatter");
  return executor_->run(engine_calls_->reduce_scatter_list(output, parts, opts.reduceOp,
                                                           {opts.timeout, opts.asyncOp}));
}

WorkPtr ProcessGroupCGX::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = single("reduce", tensors);
  check_root("reduce", opts.rootRank, group_.size);
  check_reduced("reduce", tensor);
  check_writable("reduce", tensors);
  if (!served(tensor)) return forward_reduce(tensors, opts);
  executor_->check_usable("reduce");
  return executor_->run(engine_calls_->reduce(
      tensor, opts.reduceOp, static_cast<int>(opts.rootRank), {opts.timeout, opts.asyncOp}));
}

WorkPtr ProcessGroupCGX::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::AllgatherOptions& opts) {
  executor_->check_usable("all_gather_into_tensor");
  if (engine_dtype(input) && engine_dtype(output)) {
    auto codec = policy_->codec_for(group_.config.compress_all_gather, input.numel());
    if (codec != raw_codec()) {
      return executor_->run(engine_calls_->all_gather(output, input, codec,
                                                      {opts.timeout, opts.asyncOp, Bits::kTunable},
                                                      policy_->why(true, input.numel())));
    }
  }
  refuse_other_devices("all_gather", input, c10d::ReduceOp::SUM, group_.config.compress_all_gather);
  return forward_all_gather(output, input, opts);
}

WorkPtr ProcessGroupCGX::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "cgx: all_gather of ", inputs.size(),
                    " inputs into ", outputs.size(), " outputs");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], opts));
  }
  return c10::make_intrusive<GroupedWork>(std::move(works), outputs);
}

WorkPtr ProcessGroupCGX::all_reduce_layers(at::Tensor tensor, const c10d::ReduceOp& op,
                                           std::vector<Layer> layers, const CallOptions& call) {
  check_total(layers, static_cast<size_t>(tensor.numel()));
  if (call.chosen_by.empty()) {
    Notices::explicit_call(tensor.nbytes());
  } else {
    Notices::hook();
  }
  if (is_sum(op) && engine_dtype(tensor)) {
    executor_->check_usable("all_reduce");
    for (Layer& layer : layers) layer.codec = policy_->allowed_in_group(layer.codec);
    return executor_->run(
        engine_calls_->all_reduce({tensor}, op, {std::move(layers)}, call, given(call)));
  }
  for (const Layer& layer : layers) {
    if (layer.codec != raw_codec()) refuse_compression("all_reduce", tensor, &op);
  }
  if (call.residual.defined()) refuse_residual("all_reduce", tensor, &op);
  c10d::AllreduceOptions opts;
  opts.reduceOp = op;
  opts.timeout = call.timeout;
  opts.asyncOp = call.async;
  Tensors tensors = {tensor};
  executor_->check_usable("all_reduce");
  return all_reduce_exactly(tensors, opts);
}

WorkPtr ProcessGroupCGX::all_reduce_as_group(at::Tensor tensor, const c10d::ReduceOp& op,
                                             CallOptions call) {
  if (!is_sum(op) || !engine_dtype(tensor)) {
    if (call.residual.defined()) refuse_residual("all_reduce", tensor, &op);
    c10d::AllreduceOptions opts;
    opts.reduceOp = op;
    opts.timeout = call.timeout;
    opts.asyncOp = call.async;
    Tensors tensors = {tensor};
    return allreduce(tensors, opts);
  }
  call.bits = Bits::kTunable;
  std::vector<Layer> layers = policy_->layers_for(tensor.numel());
  policy_->notice("all_reduce", tensor.numel(), tensor.nbytes(), layers);
  executor_->check_usable("all_reduce");
  return executor_->run(
      engine_calls_->all_reduce({tensor}, op, {std::move(layers)}, call,
                                policy_->why(group_.config.compress_all_reduce, tensor.numel())));
}

WorkPtr ProcessGroupCGX::reduce_scatter_codec(at::Tensor output, at::Tensor input,
                                              const c10d::ReduceOp& op,
                                              const std::shared_ptr<const Codec>& codec,
                                              const CallOptions& call) {
  Notices::explicit_call(input.nbytes());
  if (codec || call.residual.defined()) {
    for (const at::Tensor& tensor : {input, output}) {
      if (is_sum(op) && engine_dtype(tensor)) continue;
      if (codec) refuse_compression("reduce_scatter", tensor, &op);
      refuse_residual("reduce_scatter", tensor, &op);
    }
    executor_->check_usable("reduce_scatter_tensor");
    return executor_->run(engine_calls_->reduce_scatter(
        {output}, {input}, op, {codec ? policy_->allowed_in_group(codec) : raw_codec()}, call,
        given(call)));
  }
  executor_->check_usable("reduce_scatter_tensor");
  c10d::ReduceScatterOptions opts;
  opts.reduceOp = op;
  opts.timeout = call.timeout;
  opts.asyncOp = call.async;
  return reduce_scatter_exactly(output, input, opts);
}

WorkPtr ProcessGroupCGX::reduce_scatter_as_group(at::Tensor output, at::Tensor input,
                                                 const c10d::ReduceOp& op, CallOptions call) {
  const bool compresses = group_.config.compress_reduce_scatter;
  auto codec = policy_->codec_for(compresses, output.numel());
  const bool served = is_sum(op) && engine_dtype(input) && engine_dtype(output);
  if (!call.residual.defined() && (!served || codec == raw_codec())) {
    c10d::ReduceScatterOptions opts;
    opts.reduceOp = op;
    opts.timeout = call.timeout;
    opts.asyncOp = call.async;
    return _reduce_scatter_base(output, input, opts);
  }
  if (!served) refuse_residual("reduce_scatter", engine_dtype(input) ? output : input, &op);
  call.bits = Bits::kTunable;
  policy_->notice("reduce_scatter", output.numel(), output.nbytes(),
                  {{static_cast<size_t>(output.numel()), codec}});
  executor_->check_usable("reduce_scatter_tensor");
  return executor_->run(engine_calls_->reduce_scatter({output}, {input}, op, {codec}, call,
                                                      policy_->why(compresses, output.numel())));
}

WorkPtr ProcessGroupCGX::all_gather_codec(at::Tensor output, at::Tensor input,
                                          const std::shared_ptr<const Codec>& codec,
                                          const CallOptions& call) {
  if (codec || call.residual.defined()) {
    for (const at::Tensor& tensor : {input, output}) {
      if (engine_dtype(tensor)) continue;
      if (codec) refuse_compression("all_gather", tensor, nullptr);
      refuse_residual("all_gather", tensor, nullptr);
    }
    executor_->check_usable("all_gather_into_tensor");
    return executor_->run(engine_calls_->all_gather(
        output, input, codec ? policy_->allowed_in_group(codec) : raw_codec(), call, given(call)));
  }
  executor_->check_usable("all_gather_into_tensor");
  c10d::AllgatherOptions opts;
  opts.timeout = call.timeout;
  return forward_all_gather(output, input, opts);
}

WorkPtr ProcessGroupCGX::all_gather_as_group(at::Tensor output, at::Tensor input,
                                             CallOptions call) {
  const bool compresses = group_.config.compress_all_gather;
  auto codec = policy_->codec_for(compresses, input.numel());
  const bool served = engine_dtype(input) && engine_dtype(output);
  if (!call.residual.defined() && (!served || codec == raw_codec())) {
    c10d::AllgatherOptions opts;
    opts.timeout = call.timeout;
    opts.asyncOp = call.async;
    return _allgather_base(output, input, opts);
  }
  if (!served) refuse_residual("all_gather", engine_dtype(input) ? output : input, nullptr);
  call.bits = Bits::kTunable;
  executor_->check_usable("all_gather_into_tensor");
  return executor_->run(engine_calls_->all_gather(output, input, codec, call,
                                                  policy_->why(compresses, input.numel())));
}

}  // namespace cgx
