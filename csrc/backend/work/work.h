// The c10d::Work of collectives that the engine runs, and helpers for works that wrap others.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "backend/gpu/call.h"
#include "backend/health/watchdog.h"
#include "backend/work/call_record.h"
#include "backend/work/task_queue.h"

namespace cgx {

/// Completed by the group's worker thread. wait() depends only on that thread; the future, made
/// when first asked for, is completed on `callbacks`, so that a callback may launch collectives and
/// wait for them.
class EngineWork : public c10d::Work {
 public:
  EngineWork(CallRecordPtr record, const char* title, const std::vector<at::Tensor>& inputs,
             std::vector<at::Tensor> outputs, std::shared_ptr<TaskQueue> callbacks,
             std::shared_ptr<GpuCall> gpu = nullptr);

  /// Called once. `error` null: success.
  void complete(std::exception_ptr error);
  void started();

  /// Of tensors of a GPU: done there, too.
  bool isCompleted() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
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

  const CallRecordPtr record_;
  const std::vector<at::Tensor> outputs_;
  const std::shared_ptr<TaskQueue> callbacks_;
  const std::shared_ptr<GpuCall> gpu_;  // null: tensors of the host
  Clock::time_point start_{}, end_{};
  // Guarded by Work::mutex_.
  c10::intrusive_ptr<c10::ivalue::Future> future_, future_result_;
  std::exception_ptr error_;  // of complete(), which says it before Work::exception_ does
  bool settled_ = false;      // complete() has taken the futures that there were
};

/// What a backend that gave no work has put on the calling thread's current streams (NCCL's, where
/// the call is not asynchronous): nothing is left to wait for. `tensors`: what it wrote.
c10::intrusive_ptr<c10d::Work> work_in_order(c10d::OpType op, std::vector<at::Tensor> tensors);

/// Did a work succeed, as far as it can tell? NCCL's know only whether they have failed.
bool succeeded(const c10d::Work& work);

/// A work of the inner backend. Shows the caller's tensors (the inner one may have worked on views
/// of other types), and throws the cause that the group's watchdog knows when the inner work fails.
class ForwardedWork : public c10d::Work {
 public:
  /// `outputs` empty: those of the inner work.
  ForwardedWork(c10::intrusive_ptr<c10d::Work> inner, CallRecordPtr record,
                std::shared_ptr<Watchdog> watchdog, std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

  const CallRecordPtr& record() const { return record_; }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const CallRecordPtr record_;
  const std::shared_ptr<Watchdog> watchdog_;
  const std::vector<at::Tensor> outputs_;
};

/// Several works as one (coalesced operations): done when all are, waits for all, throws the first
/// error.
class GroupedWork : public c10d::Work {
 public:
  GroupedWork(std::vector<c10::intrusive_ptr<c10d::Work>> works, std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  const std::vector<at::Tensor> outputs_;
};

}  // namespace cgx
