#include "backend/executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "backend/adapters/python_error.h"
#include "backend/gpu/call.h"
#include "backend/work/caller_context.h"
#include "backend/work/engine_work.h"
#include "base/error.h"
#include "reduce/plan/hash.h"
#include "tensors/memory.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

using std::chrono::milliseconds;

// How long close() waits for collectives under way before it aborts them.
constexpr auto kShutdownGrace = std::chrono::seconds(10);
// Callbacks that wait for each other need a thread each; more than this many are an error of the
// program.
constexpr size_t kMaxCallbackThreads = 64;

// Work done outside of autograd, whatever mode the worker thread is in.
struct NoAutograd {
  at::AutoDispatchBelowADInplaceOrView below;
};

// The tensors that a call uses.
Tensors memory_of(const EngineCall& call) {
  Tensors memory;
  for (const EngineCall::Part& part : call.parts) {
    memory.insert(memory.end(), {part.input, part.output, part.result});
  }
  memory.insert(memory.end(), call.moved.begin(), call.moved.end());
  for (const EngineCall::LastCopy& copy : call.copies) memory.push_back(copy.to);
  if (call.options.residual.defined()) memory.push_back(call.options.residual);
  return memory;
}

Residual residual_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr(), *codec_type(tensor.scalar_type())};
}

}  // namespace

Executor::Executor(const GroupContext& group, Engine& engine, Autotuner* autotuner, GpuGroup& gpu,
                   Coalescing& coalescing, const CompletionHook& hook)
    : group_(group),
      engine_(engine),
      autotuner_(autotuner),
      gpu_(gpu),
      coalescing_(coalescing),
      hook_(hook),
      callbacks_(std::make_shared<TaskQueue>("cgx-callback", kMaxCallbackThreads)),
      worker_(std::make_unique<TaskQueue>("cgx-worker", 1)) {}

void Executor::check_usable(const char* what) const {
  TORCH_CHECK(
      group_.process == getpid(), "cgx: ", what, " on rank ", group_.rank,
      ": the process group belongs to the parent of this process; a forked child cannot use it");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!closed_, "cgx: ", what, " on rank ", group_.rank,
                ": the process group has been destroyed");
  }
  if (auto failure = engine_.first_cause()) {
    // The inner backend could go on, but its peers may be gone, or anywhere in the program.
    std::rethrow_exception(for_python(*failure, error_text(group_.watchdog->next(what), *failure)));
  }
}

void Executor::log_call(const CallRecord& record, const std::string& why) const {
  const CallRecord::Progress now = record.progress();
  std::string text =
      str_of(record.title().text(), ", ", describe(record.fingerprint()), ": ", now.way);
  if (now.plan) {
    text +=
        str_of(", ", now.bytes_before, " bytes of values, ", now.bytes_after, " bytes sent, ",
               now.milliseconds, " ms", why.empty() ? "" : "; codec: ", why,
               now.tuning.empty() ? "" : "; ", now.tuning,
               "; algorithm: ", why_algorithm(engine_.options(), *now.plan, engine_.topology()));
  }
  if (!now.error.empty()) text += "; failed: " + now.error;
  std::replace(text.begin(), text.end(), '\n', ';');  // of a disagreement
  log_line(text);
}

WorkPtr Executor::run(EngineCall call) {
  GpuLane* const lane = call.lane;
  call.shape.cuda = lane != nullptr;
  call.shape.key = call.options.key;
  if (lane == nullptr || !lane->lockstep()) call.shape.plan = 0;  // the messages' headers tell
  if (call.shape.plan != 0 && call.shape.key) {
    call.shape.plan = hash_with_step(call.shape.plan, {0, call.shape.key->tensor});
  }
  const milliseconds timeout =
      call.options.timeout == c10d::kUnsetTimeout ? group_.timeout() : call.options.timeout;
  // Before begin(): a call that has begun must reach its end.
  auto gpu = lane != nullptr ? std::make_shared<GpuCall>(lane->side(), memory_of(call)) : nullptr;
  CallRecordPtr record = group_.watchdog->begin(call.shape, call.inputs, call.outputs, timeout);
  const char* const title = call.title;
  const bool async = call.options.async;
  auto work = c10::make_intrusive<EngineWork>(record, title, std::exchange(call.inputs, {}),
                                              std::exchange(call.outputs, {}), callbacks_, gpu);
  TaskQueue::Task task = [this, work, record, timeout, gpu, context = CallerContext(),
                          threads = intra_op_threads(), call = std::move(call)] {
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
        gpu_.plans().agree(*record, deadline);
        run_parts(call, deadline, *record);
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
    group_.watchdog->finish(*record, text);
    if (group_.logs(LogLevel::kDebug)) log_call(*record, call.why);
    work->complete(error);
    if (hook_) try {
        hook_(std::make_shared<c10d::WorkInfo>(
            work->op(), work->getSequencenumber(),
            std::chrono::steady_clock::time_point(work->start_time()),
            std::chrono::steady_clock::time_point(work->end_time()),
            std::chrono::duration<float>(work->end_time() - work->start_time())));
      } catch (const std::exception& e) {
        log_line(str_of(group_.title(), "the on-completion hook raised: ", e.what()));
      }
  };
  if (lane != nullptr && lane->on_callers_thread()) {
    task();
    return coalescing_.track(work);
  }
  // Two switches of threads cost more than a small all-reduce.
  if (!async && worker_->run_here(task)) return coalescing_.track(work);
  try {
    submit(title, std::move(task));
  } catch (...) {
    group_.watchdog->withdraw(record);
    throw;
  }
  return coalescing_.track(work);
}

void Executor::submit(const char* title, TaskQueue::Task task) {
  bool accepted = false;
  try {
    accepted = worker_->submit(std::move(task));
  } catch (const ResourceError& error) {
    const ResourceError named(str_of(title, " on rank ", group_.rank, ": ", error.what()));
    std::rethrow_exception(for_python(std::make_exception_ptr(named)));
  }
  TORCH_CHECK(accepted, title, " on rank ", group_.rank, ": the process group has been destroyed");
}

void Executor::fail_call(const Failure& failure) {
  // A failure of one engine breaks the other, too.
  if (Engine* gpu = gpu_.engine()) {
    engine_.fail(failure);
    gpu->fail(failure);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  error_ = failure.kind == FailureKind::kTimeout ? c10d::ErrorType::TIMEOUT
                                                 : c10d::ErrorType::COMM_ERROR;
}

void Executor::run_parts(const EngineCall& call, const Deadline& deadline, CallRecord& record) {
  Engine& engine = call.lane != nullptr ? call.lane->engine() : engine_;
  for (const EngineCall::Part& part : call.parts) {
    run_plan(engine, call, part, deadline, record);
    if (!part.output.is_same(part.result)) part.result.copy_(part.output);
  }
  for (const Move& move : call.moves) {
    record.served_by(move.plan, engine.communicator());
    const Stats& stats = engine.stats_of(move);
    const uint64_t before = stats.bytes_sent;
    engine.run_move(move, deadline, record.number, residual_of(call.options.residual),
                    call.options.key);
    record.count_sent(stats.bytes_sent - before);
  }
  for (const EngineCall::LastCopy& copy : call.copies) copy.to.copy_(copy.from);
}

void Executor::run_plan(Engine& engine, const EngineCall& call, const EngineCall::Part& part,
                        const Deadline& deadline, CallRecord& record) {
  Autotuner::TunedPlan tuned{part.plan};
  if (autotuner_ != nullptr && call.options.bits == Bits::kTunable && &engine == &engine_) {
    tuned = autotuner_->decide(part.plan, deadline, record.number);
    if (group_.logs(LogLevel::kDebug)) record.tuned(autotuner_->why(tuned));
  }
  record.served_by(tuned.plan, engine.communicator());
  const uint64_t before = engine.stats().bytes_sent;
  const int64_t begin = tuned.turn.timed() ? Autotuner::now() : 0;
  std::vector<const void*> shards;
  for (const at::Tensor& shard : part.shards) shards.push_back(shard.const_data_ptr());
  engine.run(*tuned.plan, part.input.data_ptr(), part.output.data_ptr(), call.average, deadline,
             record.number, nullptr, residual_of(call.options.residual), call.options.key,
             shards.empty() ? nullptr : shards.data());
  const int64_t end = tuned.turn.timed() ? Autotuner::now() : 0;
  record.count_sent(engine.stats().bytes_sent - before);
  if (tuned.tuned_class != nullptr) autotuner_->ran(tuned, {begin, end});
}

c10d::ErrorType Executor::error() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

bool Executor::wait_idle(const Deadline& deadline) {
  return worker_->wait_idle(deadline) && callbacks_->wait_idle(deadline);
}

bool Executor::begin_close() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !std::exchange(closed_, true);
}

void Executor::close() {
  if (!worker_->wait_idle(Deadline::after(kShutdownGrace))) {
    const std::string why = "the process group was destroyed while this collective was under way";
    engine_.abort(why);
    if (Engine* gpu = gpu_.engine()) gpu->abort(why);
  }
  worker_->close();
  callbacks_->close();
}

void Executor::abandon() {
  (void)worker_.release();
  (void)new std::shared_ptr<TaskQueue>(std::move(callbacks_));
}

}  // namespace cgx
