// The c10d::Work of a collective that the engine runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "backend/gpu/call.h"
#include "backend/work/call_record.h"
#include "backend/work/task_queue.h"
#include "backend/work/works.h"
#include "comm/process_token.h"

namespace cgx {

/// Completed by the group's worker thread. wait() depends only on that thread; the future, made
/// when first asked for, is completed on `callbacks`, so that a callback may launch collectives and
/// wait for them.
class EngineWork : public c10d::Work {
 public:
  EngineWork(CallRecordPtr record, const char* title, const Tensors& inputs, Tensors outputs,
             std::shared_ptr<TaskQueue> callbacks, std::shared_ptr<GpuCall> gpu = nullptr);

  /// Called once. `error` null: success.
  void complete(std::exception_ptr error);
  void started();

  /// For tensors of a GPU: true once the call is also done on the device.
  bool isCompleted() override;
  Tensors result() override;
  FuturePtr getFuture() override;
  FuturePtr getFutureResult() override;
  /// Makes the calling thread's current stream wait for tensors of a GPU.
  void synchronize() override;
  /// Milliseconds between start and end; error before the end.
  float getDuration() const override;
  uint64_t getSequencenumber() const override;
  void abort() override;
  /// TimeoutError after `timeout`, while the collective goes on; else what the collective threw.
  bool wait(std::chrono::milliseconds timeout) override;

  c10d::OpType op() const { return opType_; }
  std::chrono::steady_clock::time_point start_time() const { return start_; }
  std::chrono::steady_clock::time_point end_time() const { return end_; }

 private:
  using Clock = std::chrono::steady_clock;

  const uint64_t process_ = process_token();
  const CallRecordPtr record_;
  const Tensors outputs_;
  const std::shared_ptr<TaskQueue> callbacks_;
  const std::shared_ptr<GpuCall> gpu_;  // null: tensors of the host
  Clock::time_point start_{}, end_{};
  // Guarded by Work::mutex_.
  FuturePtr future_, future_result_;
  std::exception_ptr error_;  // of complete(), which says it before Work::exception_ does
  bool settled_ = false;      // complete() has taken the futures that there were
};

}  // namespace cgx
