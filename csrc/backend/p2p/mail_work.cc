#include "backend/p2p/mail_work.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "backend/adapters/gil.h"
#include "backend/adapters/python_error.h"
#include "backend/gpu/call.h"
#include "base/error.h"

namespace cgx {

// Keeps its work, and the tensor, until it is over.
class MailWork::Transfer final : public MailTransfer {
 public:
  Transfer(Way way, int peer, int tag, const MailShape& shape, std::byte* data,
           c10::intrusive_ptr<MailWork> work, at::Tensor held)
      : MailTransfer(way, peer, tag, shape, data), work_(std::move(work)), held_(std::move(held)) {}

  void ended() override {
    const c10::intrusive_ptr<MailWork> work = let_go();
    work->settle_transfer(*this);
  }
  c10::intrusive_ptr<MailWork> let_go() {
    held_.reset();
    return std::move(work_);
  }

 private:
  c10::intrusive_ptr<MailWork> work_;
  at::Tensor held_;
};

MailWork::MailWork(CallRecordPtr record, const char* title, const Tensors& inputs, Tensors outputs,
                   std::shared_ptr<TaskQueue> callbacks, std::shared_ptr<GpuCall> gpu,
                   std::shared_ptr<Watchdog> watchdog, std::shared_ptr<Mail> mail,
                   std::function<void()> last)
    : EngineWork(record, title, inputs, std::move(outputs), std::move(callbacks), gpu),
      record_(std::move(record)),
      gpu_(std::move(gpu)),
      watchdog_(std::move(watchdog)),
      mail_(std::move(mail)),
      last_(std::move(last)) {}

void MailWork::begin(MailTransfer::Way way, int peer, int tag, const MailShape& shape,
                     std::byte* data, const at::Tensor& held) {
  const auto transfer = std::make_shared<Transfer>(
      way, peer, tag, shape, data, c10::intrusive_ptr<MailWork>::reclaim_copy(this), held);
  transfer_ = transfer;
  started();
  try {
    mail_->post(transfer);
  } catch (...) {
    transfer->let_go();
    throw;
  }
}

void MailWork::settle_transfer(const MailTransfer& transfer) {
  std::exception_ptr error;
  std::string text;
  try {
    std::optional<Failure> failure = transfer.failure();
    // The end of this group is no failure of the others.
    if (failure && !mail_->closed()) failure = watchdog_->conclude(*record_, std::move(*failure));
    if (failure) {
      text = record_->error_text(*failure);
      error = for_python(*failure, text);
    } else if (last_) {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      const GpuCall::Turn turn(gpu_.get());
      last_();
    }
  } catch (const std::exception& e) {
    text = e.what();
    error = std::current_exception();
  }
  last_ = nullptr;
  watchdog_->finish(*record_, text);
  complete(error);
}

bool MailWork::isCompleted() {
  if (!transfer_->over()) {
    ReleaseGilIfHeld no_gil;
    mail_->poll();
  }
  return EngineWork::isCompleted();
}

int MailWork::sourceRank() const { return transfer_->source(); }

bool MailWork::wait(std::chrono::milliseconds timeout) {
  if (!transfer_->over()) {
    watchdog_->check_process(*record_);
    const bool own = timeout != c10d::kUnsetTimeout && timeout != kNoTimeout;
    mail_->wait(*transfer_, Deadline::after(own ? timeout : record_->timeout));
  }
  return EngineWork::wait(kNoTimeout);
}

void MailWork::abort() { mail_->abort(*transfer_, {FailureKind::kAborted, "aborted"}); }

void MailWork::limit() {
  if (!transfer_->over()) mail_->limit(transfer_, Deadline::after(record_->timeout));
}

FuturePtr MailWork::getFuture() {
  limit();
  return EngineWork::getFuture();
}

FuturePtr MailWork::getFutureResult() {
  limit();
  return EngineWork::getFutureResult();
}

}  // namespace cgx
