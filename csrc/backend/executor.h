// Runs the engine's collectives of one group, one after the other: on a thread of the group's own,
// or on the caller's where that is faster.
//
// Thread-safety: as c10d::Backend; error() and close() from any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "backend/adapters/torch_types.h"
#include "backend/engine_call.h"
#include "backend/gpu/group.h"
#include "backend/group_context.h"
#include "backend/inner/coalescing.h"
#include "backend/work/call_record.h"
#include "backend/work/task_queue.h"
#include "base/deadline.h"
#include "reduce/engine.h"
#include "reduce/tuning/autotuner.h"

namespace cgx {

class Executor {
 public:
  using CompletionHook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  /// All outlive this object, or its close(). `autotuner` null: nothing is tuned. `hook`: called
  /// after each call, if there is one by then.
  Executor(const GroupContext& group, Engine& engine, Autotuner* autotuner, GpuGroup& gpu,
           Coalescing& coalescing, const CompletionHook& hook);

  /// RuntimeError in a forked child and after close(); the first cause after a failure.
  void check_usable(const char* what) const;

  Engine& engine() const { return engine_; }

  /// Begins a collective, whose plans run in their turn. To be called after check_usable().
  WorkPtr run(EngineCall call);

  /// Runs a task on the worker's thread, in its turn. RuntimeError after close(). ResourceError, in
  /// the form for Python: the worker has no thread, and the system starts none.
  void submit(const char* title, TaskQueue::Task task);
  /// The queue whose threads complete futures.
  const std::shared_ptr<TaskQueue>& callbacks() const { return callbacks_; }

  void log_call(const CallRecord& record, const std::string& why) const;

  /// Kind of the last failure of a call.
  c10d::ErrorType error() const;
  /// False if the deadline has passed before all calls and callbacks have ended and let go of their
  /// tensors.
  bool wait_idle(const Deadline& deadline = Deadline());

  /// True for the first caller, which then calls close().
  bool begin_close();
  /// Waits for the calls under way, 10 s at most, then aborts them; ends the threads.
  void close();
  /// In a forked child: leaks the queues, whose threads stayed in the parent.
  void abandon();

 private:
  /// Runs the plans of a call.
  void run_parts(const EngineCall& call, const Deadline& deadline, CallRecord& record);
  void run_plan(Engine& engine, const EngineCall& call, const EngineCall::Part& part,
                const Deadline& deadline, CallRecord& record);
  /// A call of the engine has failed.
  void fail_call(const Failure& failure);

  const GroupContext& group_;
  Engine& engine_;
  Autotuner* const autotuner_;
  GpuGroup& gpu_;
  Coalescing& coalescing_;
  const CompletionHook& hook_;

  std::shared_ptr<TaskQueue> callbacks_;
  std::unique_ptr<TaskQueue> worker_;

  mutable std::mutex mutex_;  // guards what follows
  c10d::ErrorType error_ = c10d::ErrorType::SUCCESS;
  bool closed_ = false;
};

}  // namespace cgx
