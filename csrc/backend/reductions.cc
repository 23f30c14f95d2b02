// Collectives that the engine serves, and their way to the thread that runs them. Which codec they
// get: codec_choice.cc.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "backend/gpu/call.h"
#include "backend/process_group_cgx.h"
#include "backend/python_error.h"
#include "backend/tensor_memory.h"
#include "backend/torch_threads.h"
#include "backend/work/caller_context.h"
#include "base/error.h"

namespace cgx {
namespace {

using WorkPtr = ProcessGroupCGX::WorkPtr;
using Tensors = ProcessGroupCGX::Tensors;
using std::chrono::milliseconds;

// Why an explicit call has the codec that it has.
std::string given(const CallOptions& call) {
  return call.chosen_by.empty() ? "given by the call" : "chosen by " + call.chosen_by;
}

const char* name_of(const c10d::ReduceOp& op) {
  static constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                           "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  const auto index = static_cast<size_t>(op.op_);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

bool is_sum(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::AVG;
}

const at::Tensor& single(const char* what, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "cgx: ", what, " takes one tensor per rank, got ",
                    tensors.size());
  return tensors.front();
}

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

void check_shards(const char* what, const at::Tensor& whole, const at::Tensor& shard, int size) {
  TORCH_CHECK_VALUE(whole.scalar_type() == shard.scalar_type(), "cgx: ", what, ": input is ",
                    whole.scalar_type(), ", output is ", shard.scalar_type(),
                    "; they must be equal");
  TORCH_CHECK_VALUE(whole.numel() == shard.numel() * size, "cgx: ", what, " on ", size,
                    " ranks: the larger tensor has ", whole.numel(), " values, the smaller one ",
                    shard.numel(), "; expected ", size, " times as many");
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

int bits_of(const Plan& plan) {
  const Layer* first = plan.first_compressed();
  return first != nullptr ? first->codec->bits() : 0;
}

// Work done outside of autograd, whatever mode the worker thread is in.
struct NoAutograd {
  at::AutoDispatchBelowADInplaceOrView below;
};

}  // namespace

std::optional<DType> engine_dtype(const at::Tensor& tensor) {
  const bool device = tensor.device().is_cpu() || tensor.is_cuda();
  if (!device || tensor.layout() != at::kStrided) return std::nullopt;
  return codec_type(tensor.scalar_type());
}

void ProcessGroupCGX::log_call(const CallRecord& record, const std::string& why) const {
  const CallRecord::Progress now = record.progress();
  std::string text = str_of(record.title().text(), ", ", describe(record.note()), ": ", now.way);
  if (now.plan) {
    text +=
        str_of(", ", now.bytes_before, " bytes of values, ", now.bytes_after, " bytes sent, ",
               now.milliseconds, " ms; codec: ", why, now.tuning.empty() ? "" : "; ", now.tuning,
               "; algorithm: ", why_algorithm(engine_->options(), *now.plan, engine_->topology()));
  }
  if (!now.error.empty()) text += "; failed: " + now.error;
  std::replace(text.begin(), text.end(), '\n', ';');  // of a disagreement
  log_line(text);
}

WorkPtr ProcessGroupCGX::enqueue(CallShape shape, const char* title, const Tensors& inputs,
                                 const Tensors& outputs, const Tensors& memory,
                                 const CallOptions& call, std::string why, Body body) {
  GpuLane* lane = memory.front().is_cuda() ? &gpu_lane(memory.front()) : nullptr;
  shape.cuda = lane != nullptr;
  if (lane == nullptr || !lane->lockstep()) shape.plan = 0;  // the messages' headers tell
  const milliseconds timeout =
      call.timeout == c10d::kUnsetTimeout ? options_->timeout : call.timeout;
  // Before begin(): a call that has begun must reach its end.
  auto gpu = lane != nullptr ? std::make_shared<GpuCall>(lane->side(), memory) : nullptr;
  CallRecordPtr record = watchdog_->begin(shape, inputs, outputs, timeout);
  auto work = c10::make_intrusive<EngineWork>(record, title, inputs, outputs, callbacks_, gpu);
  TaskQueue::Task task = [this, work, record, timeout, gpu, why = std::move(why),
                          context = CallerContext(), threads = intra_op_threads(),
                          body = std::move(body)] {
    std::exception_ptr error;
    std::string text;
    work->started();
    record->start();
    set_intra_op_threads(threads);
    {
      const auto as_the_caller = context.enter();
      try {
        NoAutograd guard;
        const GpuCall::Turn turn(gpu.get());
        const Deadline deadline = Deadline::after(timeout);
        agree_on_plan(*record, deadline);
        body(deadline, *record);
      } catch (const std::exception& e) {
        error = std::current_exception();
        text = e.what();
        const Failure failure = failure_of(e);
        if (dynamic_cast<const Error*>(&e) != nullptr) {
          text = record->error_text(failure);
          error = for_python(failure, text);
        }
        if (failure.kind != FailureKind::kNonFinite) fail_call(failure);
      }
    }
    watchdog_->finish(*record, text);
    if (config_.log == LogLevel::kDebug) log_call(*record, why);
    work->complete(error);
    if (onCompletionHook_) try {
        onCompletionHook_(std::make_shared<c10d::WorkInfo>(
            work->op(), work->getSequencenumber(),
            std::chrono::steady_clock::time_point(work->start_time()),
            std::chrono::steady_clock::time_point(work->end_time()),
            std::chrono::duration<float>(work->end_time() - work->start_time())));
      } catch (const std::exception& e) {
        TORCH_WARN("cgx: the on-completion hook raised: ", e.what());
      }
  };
  if (lane != nullptr && lane->on_callers_thread()) {
    task();
    return track(work);
  }
  // Two switches of threads cost more than a small all-reduce.
  if (!call.async && worker_->run_here(task)) return track(work);
  if (!worker_->submit(std::move(task))) {
    watchdog_->withdraw(record);
    TORCH_CHECK(false, "cgx: ", title, " on rank ", rank_,
                ": the process group has been destroyed");
  }
  return track(work);
}

void ProcessGroupCGX::fail_call(const Failure& failure) {
  if (gpu_engine() != nullptr) break_engines(failure);
  std::lock_guard<std::mutex> lock(mutex_);
  error_ = failure.kind == FailureKind::kTimeout ? c10d::ErrorType::TIMEOUT
                                                 : c10d::ErrorType::COMM_ERROR;
}

void ProcessGroupCGX::run_plan(Engine& engine, const std::shared_ptr<const Plan>& plan, Bits bits,
                               const void* input, void* output, bool average,
                               const Deadline& deadline, CallRecord& record) {
  Autotuner::Decision decision{plan};
  if (autotuner_ && bits == Bits::kTunable && &engine == engine_.get()) {
    decision = autotuner_->decide(plan, deadline, record.number);
    if (config_.log == LogLevel::kDebug) record.tuned(autotuner_->why(decision));
  }
  record.served_by(decision.plan, engine.communicator());
  const uint64_t before = engine.stats().bytes_sent;
  const int64_t begin = decision.turn.timed() ? Autotuner::now() : 0;
  engine.run(*decision.plan, input, output, average, deadline, record.number);
  const int64_t end = decision.turn.timed() ? Autotuner::now() : 0;
  record.count_sent(engine.stats().bytes_sent - before);
  if (decision.tuned != nullptr) autotuner_->ran(decision, {begin, end});
}

WorkPtr ProcessGroupCGX::engine_all_reduce(const Tensors& tensors, const c10d::ReduceOp& op,
                                           std::vector<std::vector<Layer>> layers,
                                           const CallOptions& call, std::string why) {
  check_usable("all_reduce");
  refuse_in_capture("all_reduce", tensors.front());
  struct Item {
    at::Tensor tensor, memory;
    std::shared_ptr<const Plan> plan;
  };
  std::vector<Item> items;
  Tensors memory;
  int64_t values = 0;
  uint64_t hash = 0;
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
  return enqueue({type, op.op_, tensors.front().scalar_type(), values, -1, true, false, hash,
                  bits_of(*items.front().plan)},
                 "cgx:all_reduce", tensors, tensors, memory, call, std::move(why),
                 [this, &engine, items, bits = call.bits, average](const Deadline& deadline,
                                                                   CallRecord& record) {
                   for (const Item& item : items) {
                     void* data = item.memory.data_ptr();
                     run_plan(engine, item.plan, bits, data, data, average, deadline, record);
                     if (!item.memory.is_same(item.tensor)) item.tensor.copy_(item.memory);
                   }
                 });
}

WorkPtr ProcessGroupCGX::engine_reduce_scatter(at::Tensor output, at::Tensor input,
                                               const c10d::ReduceOp& op,
                                               const std::shared_ptr<const Codec>& codec,
                                               const CallOptions& call, std::string why) {
  check_usable("reduce_scatter_tensor");
  refuse_in_capture("reduce_scatter", input);
  check_shards("reduce_scatter", input, output, size_);
  check_same_device("reduce_scatter", input, output);
  const at::Tensor out = dense("reduce_scatter", output);
  at::Tensor in = readable(input);
  in = apart(in, out, part_of(in, out, rank_));
  Engine& engine = engine_for(input);
  auto plan = engine.plan_shards(Operation::kReduceScatter, static_cast<size_t>(output.numel()),
                                 codec, *engine_dtype(input));
  const bool average = op.op_ == c10d::ReduceOp::AVG;
  return enqueue({c10d::OpType::_REDUCE_SCATTER_BASE, op.op_, output.scalar_type(), input.numel(),
                  -1, true, false, plan->hash, bits_of(*plan)},
                 "cgx:reduce_scatter", {input}, {output}, {in, out, output}, call, std::move(why),
                 [this, &engine, in, out, output, plan, bits = call.bits, average](
                     const Deadline& deadline, CallRecord& record) {
                   run_plan(engine, plan, bits, in.data_ptr(), out.data_ptr(), average, deadline,
                            record);
                   if (!out.is_same(output)) output.copy_(out);
                 });
}

WorkPtr ProcessGroupCGX::engine_all_gather(at::Tensor output, at::Tensor input,
                                           const std::shared_ptr<const Codec>& codec,
                                           const CallOptions& call, std::string why) {
  check_usable("all_gather_into_tensor");
  refuse_in_capture("all_gather", input);
  check_shards("all_gather", output, input, size_);
  check_same_device("all_gather", input, output);
  const at::Tensor out = dense("all_gather", output);
  at::Tensor in = readable(input);
  in = apart(in, out, part_of(out, in, rank_));
  Engine& engine = engine_for(input);
  auto plan = engine.plan_shards(Operation::kAllGather, static_cast<size_t>(input.numel()), codec,
                                 *engine_dtype(input));
  return enqueue({c10d::OpType::_ALLGATHER_BASE, std::nullopt, input.scalar_type(), output.numel(),
                  -1, true, false, plan->hash, bits_of(*plan)},
                 "cgx:all_gather", {input}, {output}, {in, out, output}, call, std::move(why),
                 [this, &engine, in, out, output, plan, bits = call.bits](const Deadline& deadline,
                                                                          CallRecord& record) {
                   run_plan(engine, plan, bits, in.data_ptr(), out.data_ptr(), false, deadline,
                            record);
                   if (!out.is_same(output)) output.copy_(out);
                 });
}

namespace {

// A compressed call that the engine cannot serve must not silently become an exact one.
void refuse_compression(const char* what, const at::Tensor& tensor, const c10d::ReduceOp* op) {
  TORCH_CHECK_VALUE(
      false, "cgx: a compressed ", what, " was asked for a ", tensor.scalar_type(), " tensor on ",
      tensor.device(), " with the op ", op != nullptr ? name_of(*op) : "(none)",
      "; compressed are float32, float16 and bfloat16 tensors on CPU or CUDA under SUM and AVG. ",
      "Ask for 32 bits, or use an exact collective");
}

}  // namespace

void ProcessGroupCGX::refuse_other_devices(const char* what, const at::Tensor& tensor,
                                           const c10d::ReduceOp& op, bool compresses) const {
  const auto type = tensor.scalar_type();
  const bool compressible = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  if (tensor.device().is_cpu() || tensor.is_cuda() || !compressible || !is_sum(op)) return;
  if (codec_for(compresses, tensor.numel()) != raw_codec()) refuse_compression(what, tensor, &op);
}

WorkPtr ProcessGroupCGX::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  check_usable("all_reduce");
  const at::Tensor& tensor = single("all_reduce", tensors);
  if (is_sum(opts.reduceOp) && engine_dtype(tensor)) {
    std::vector<Layer> layers = layers_for(tensor);
    notice("all_reduce", tensor, layers);
    return engine_all_reduce(tensors, opts.reduceOp, {std::move(layers)},
                             {opts.timeout, opts.asyncOp, Bits::kTunable},
                             why_codec(config_.compress_all_reduce, tensor));
  }
  refuse_other_devices("all_reduce", tensor, opts.reduceOp, config_.compress_all_reduce);
  const auto type = tensor.scalar_type();
  TORCH_CHECK_TYPE(
      type != at::kShort && !c10::isBarebonesUnsignedType(type) && !at::isFloat8Type(type),
      "cgx: all_reduce of a ", type,
      " tensor is not supported; convert it to int32, int64 or float32 first");
  return forward_all_reduce(tensors, opts);
}

WorkPtr ProcessGroupCGX::allreduce_coalesced(Tensors& tensors,
                                             const c10d::AllreduceCoalescedOptions& opts) {
  check_usable("all_reduce_coalesced");
  bool engine = is_sum(opts.reduceOp);
  for (const at::Tensor& tensor : tensors) engine = engine && engine_dtype(tensor);
  if (engine && !tensors.empty()) {
    std::vector<std::vector<Layer>> layers;
    for (const at::Tensor& tensor : tensors) {
      layers.push_back(layers_for(tensor));
      notice("all_reduce", tensor, layers.back());
    }
    return engine_all_reduce(tensors, opts.reduceOp, std::move(layers),
                             {opts.timeout, opts.asyncOp, Bits::kTunable},
                             why_codec(config_.compress_all_reduce, tensors.front()));
  }
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) {
    Tensors one = {tensor};
    works.push_back(allreduce(one, opts));
  }
  return c10::make_intrusive<GroupedWork>(std::move(works), tensors);
}

WorkPtr ProcessGroupCGX::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& opts) {
  check_usable("reduce_scatter_tensor");
  if (is_sum(opts.reduceOp) && engine_dtype(input) && engine_dtype(output)) {
    auto codec = codec_for(config_.compress_reduce_scatter, output.numel());
    notice("reduce_scatter", output, {{static_cast<size_t>(output.numel()), codec}});
    if (codec != raw_codec()) {
      return engine_reduce_scatter(output, input, opts.reduceOp, codec,
                                   {opts.timeout, opts.asyncOp, Bits::kTunable},
                                   why_codec(true, output));
    }
  }
  refuse_other_devices("reduce_scatter", output, opts.reduceOp, config_.compress_reduce_scatter);
  return forward_reduce_scatter(output, input, opts);
}

WorkPtr ProcessGroupCGX::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "cgx: reduce_scatter of ", inputs.size(),
                    " inputs into ", outputs.size(), " outputs");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], opts));
  }
  return c10::make_intrusive<GroupedWork>(std::move(works), outputs);
}

WorkPtr ProcessGroupCGX::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::AllgatherOptions& opts) {
  check_usable("all_gather_into_tensor");
  if (engine_dtype(input) && engine_dtype(output)) {
    auto codec = codec_for(config_.compress_all_gather, input.numel());
    if (codec != raw_codec()) {
      return engine_all_gather(output, input, codec, {opts.timeout, opts.asyncOp, Bits::kTunable},
                               why_codec(true, input));
    }
  }
  refuse_other_devices("all_gather", input, c10d::ReduceOp::SUM, config_.compress_all_gather);
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
                                           const std::vector<LayerRequest>& requests,
                                           const CallOptions& call) {
  std::vector<Layer> layers = layers_of_request(tensor, requests);
  if (call.chosen_by.empty()) {
    Notices::explicit_call(tensor.nbytes());
  } else {
    Notices::hook();
  }
  if (is_sum(op) && engine_dtype(tensor)) {
    return engine_all_reduce({tensor}, op, {std::move(layers)}, call, given(call));
  }
  for (const LayerRequest& layer : requests) {
    if (layer.codec) refuse_compression("all_reduce", tensor, &op);
  }
  c10d::AllreduceOptions opts;
  opts.reduceOp = op;
  opts.timeout = call.timeout;
  Tensors tensors = {tensor};
  return forward_all_reduce(tensors, opts);
}

WorkPtr ProcessGroupCGX::reduce_scatter_codec(at::Tensor output, at::Tensor input,
                                              const c10d::ReduceOp& op,
                                              const std::shared_ptr<const Codec>& codec,
                                              const CallOptions& call) {
  Notices::explicit_call(input.nbytes());
  if (codec) {
    if (!is_sum(op) || !engine_dtype(input)) refuse_compression("reduce_scatter", input, &op);
    if (!engine_dtype(output)) refuse_compression("reduce_scatter", output, &op);
    return engine_reduce_scatter(output, input, op, allowed_in_group(codec), call, given(call));
  }
  check_usable("reduce_scatter_tensor");
  c10d::ReduceScatterOptions opts;
  opts.reduceOp = op;
  opts.timeout = call.timeout;
  return forward_reduce_scatter(output, input, opts);
}

WorkPtr ProcessGroupCGX::all_gather_codec(at::Tensor output, at::Tensor input,
                                          const std::shared_ptr<const Codec>& codec,
                                          const CallOptions& call) {
  if (codec) {
    if (!engine_dtype(input)) refuse_compression("all_gather", input, nullptr);
    if (!engine_dtype(output)) refuse_compression("all_gather", output, nullptr);
    return engine_all_gather(output, input, allowed_in_group(codec), call, given(call));
  }
  check_usable("all_gather_into_tensor");
  c10d::AllgatherOptions opts;
  opts.timeout = call.timeout;
  return forward_all_gather(output, input, opts);
}

}  // namespace cgx