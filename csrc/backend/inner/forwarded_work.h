// The c10d::Work of a collective that an inner backend runs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "backend/adapters/torch_types.h"
#include "backend/gpu/call.h"
#include "backend/health/watchdog.h"
#include "backend/work/call_record.h"
#include "backend/work/of_process.h"

namespace cgx {

/// What is left to do once an inner work has ended, by whoever waits for it first: values that were
/// received into other memory are copied. Thread-safe.
class LastStep {
 public:
  /// `tensors`: that `copy` reads and writes, of one device.
  LastStep(Tensors tensors, std::function<void()> copy)
      : tensors_(std::move(tensors)), copy_(std::move(copy)) {}

  /// Copies, the first time, after the earlier work of the caller's stream. That stream waits until
  /// it is done, each time.
  void take();
  /// True once it is also done on the device; after take().
  bool done();

 private:
  const Tensors tensors_;
  std::mutex mutex_;  // guards what follows
  std::function<void()> copy_;
  std::shared_ptr<GpuCall> gpu_;  // null: tensors of the host
};

/// A work of the inner backend. Shows the caller's tensors (the inner one may have worked on views
/// of other types), and throws the cause that the group's watchdog knows when the inner work fails.
class ForwardedWork : public c10d::Work {
 public:
  /// `outputs` empty: the outputs of the inner work. `last`: null, or what is left to do.
  ForwardedWork(WorkPtr inner, CallRecordPtr record, std::shared_ptr<Watchdog> watchdog,
                Tensors outputs, std::shared_ptr<LastStep> last = nullptr);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  Tensors result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  FuturePtr getFuture() override;
  FuturePtr getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

  const CallRecordPtr& record() const { return record_; }

 private:
  /// As the inner work's wait; false if the group breaks meanwhile, whatever becomes of that work.
  bool wait_for_inner(std::chrono::milliseconds timeout);

  const OfProcess<WorkPtr> inner_;
  const CallRecordPtr record_;
  const std::shared_ptr<Watchdog> watchdog_;
  const Tensors outputs_;
  const std::shared_ptr<LastStep> last_;
};

}  // namespace cgx
