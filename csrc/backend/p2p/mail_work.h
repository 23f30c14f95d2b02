// The c10d::Work of a send or a receive between ranks that share memory.
#pragma once

#include <functional>
#include <memory>

#include "backend/health/watchdog.h"
#include "backend/work/engine_work.h"
#include "comm/mail/mail.h"

namespace cgx {

/// wait() moves bytes itself, on the caller's thread. One that runs out ends the transfer, and
/// breaks the group. Holds no tensors of a send once that is over.
class MailWork final : public EngineWork {
 public:
  /// `last`: null, or what is to be done with the values that were received, on whichever thread
  /// ends the transfer, as a turn of `gpu`.
  MailWork(CallRecordPtr record, const char* title, const Tensors& inputs, Tensors outputs,
           std::shared_ptr<TaskQueue> callbacks, std::shared_ptr<GpuCall> gpu,
           std::shared_ptr<Watchdog> watchdog, std::shared_ptr<Mail> mail,
           std::function<void()> last);

  /// `held`: the memory of the transfer. Throws what Mail::post() throws; nothing has begun then.
  void begin(MailTransfer::Way way, int peer, int tag, const MailShape& shape, std::byte* data,
             const at::Tensor& held);

  bool isCompleted() override;
  int sourceRank() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  /// Completed within the group's timeout, too.
  FuturePtr getFuture() override;
  FuturePtr getFutureResult() override;

 private:
  class Transfer;
  void settle_transfer(const MailTransfer& transfer);
  void limit();

  const CallRecordPtr record_;
  const std::shared_ptr<GpuCall> gpu_;
  const std::shared_ptr<Watchdog> watchdog_;
  const std::shared_ptr<Mail> mail_;
  std::function<void()> last_;
  std::shared_ptr<MailTransfer> transfer_;
};

}  // namespace cgx
