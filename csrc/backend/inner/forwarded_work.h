// The c10d::Work of a collective that an inner backend runs.
#pragma once

#include <chrono>
#include <memory>

#include "backend/adapters/torch_types.h"
#include "backend/health/watchdog.h"
#include "backend/work/call_record.h"

namespace cgx {

/// A work of the inner backend. Shows the caller's tensors (the inner one may have worked on views
/// of other types), and throws the cause that the group's watchdog knows when the inner work fails.
class ForwardedWork : public c10d::Work {
 public:
  /// `outputs` empty: the outputs of the inner work.
  ForwardedWork(WorkPtr inner, CallRecordPtr record, std::shared_ptr<Watchdog> watchdog,
                Tensors outputs);

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
  const WorkPtr inner_;
  const CallRecordPtr record_;
  const std::shared_ptr<Watchdog> watchdog_;
  const Tensors outputs_;
};

}  // namespace cgx
