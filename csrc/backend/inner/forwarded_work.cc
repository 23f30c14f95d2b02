#include "backend/inner/forwarded_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "backend/work/works.h"
#include "base/deadline.h"
#include "base/error.h"
#include "comm/gloo/error_text.h"
#include "tensors/gpu/stream.h"

namespace cgx {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50};
// Most waits of a broken group end by themselves when its connections close.
constexpr milliseconds kGrace{100};

class Gate {
 public:
  void open() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  bool wait(milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

milliseconds left_of(const Deadline& deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline.left()), milliseconds(1));
}

// Called while an exception of an inner work is handled.
[[noreturn]] void rethrow_inner(Watchdog& watchdog, CallRecord& record) {
  try {
    throw;
  } catch (const MismatchError& e) {
    watchdog.disagree(record, e.what());
  } catch (const c10::DistError& e) {
    watchdog.finish(record, plain_text(e));
    watchdog.rethrow(record, plain_text(e), true);
  } catch (const c10::Error& e) {
    const std::string text = plain_text(e);
    if (text.find(kWaitRanOut) != std::string::npos) {
      // A wait for a send or a receive that ran out has ended it: Gloo closes the connections then.
      const bool ended = record.shape.point_to_point();
      if (ended) watchdog.finish(record, text);
      watchdog.rethrow(record, text, ended);
    }
    watchdog.finish(record, text);
    throw;  // torch's own: it does not know the type or the operation; the connections are fine
  } catch (const std::exception& e) {
    watchdog.finish(record, plain_text(e));
    watchdog.rethrow(record, plain_text(e), true);
  }
}

}  // namespace

void LastStep::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (copy_) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor& first = tensors_.front();
    if (first.is_cuda()) {
      gpu_ = std::make_shared<GpuCall>(side_stream(first.device()), tensors_);
    }
    const GpuCall::Turn turn(gpu_.get());
    std::exchange(copy_, nullptr)();
  }
  if (gpu_) gpu_->make_stream_wait();
}

bool LastStep::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !gpu_ || gpu_->query();
}

ForwardedWork::ForwardedWork(WorkPtr inner, CallRecordPtr record,
                             std::shared_ptr<Watchdog> watchdog, Tensors outputs,
                             std::shared_ptr<LastStep> last)
    : Work(-1, record->shape.op),
      inner_(std::move(inner)),
      record_(std::move(record)),
      watchdog_(std::move(watchdog)),
      outputs_(std::move(outputs)),
      last_(std::move(last)) {
  record_->watch_work(inner_.get());
}

bool ForwardedWork::isCompleted() {
  if (!inner_->isCompleted()) return false;
  if (!last_ || !succeeded(*inner_)) return true;
  last_->take();
  return last_->done();
}

bool ForwardedWork::isSuccess() const { return succeeded(*inner_); }
std::exception_ptr ForwardedWork::exception() const { return inner_->exception(); }
int ForwardedWork::sourceRank() const { return inner_->sourceRank(); }
Tensors ForwardedWork::result() { return outputs_.empty() ? inner_->result() : outputs_; }
void ForwardedWork::synchronize() {
  inner_->synchronize();
  if (last_) last_->take();
}

// A collective of Gloo's whose connection breaks in the middle of a message may never end, and cannot
// be aborted.
bool ForwardedWork::wait_for_inner(milliseconds timeout) {
  const bool limited = timeout != kNoTimeout;
  if (record_->shape.cuda || record_->shape.point_to_point() || inner_->isCompleted() ||
      (limited && timeout.count() < 0)) {
    return inner_->wait(timeout);
  }
  FuturePtr future;
  try {
    future = inner_->getFuture();
  } catch (const std::exception&) {
    return inner_->wait(timeout);  // a work of several, which has none
  }
  const auto gate = std::make_shared<Gate>();
  future->addCallback([gate](c10::ivalue::Future&) { gate->open(); });
  const Deadline deadline = limited ? Deadline::after(timeout) : Deadline();
  while (!gate->wait(limited ? std::min(left_of(deadline), kLook) : kLook)) {
    if (limited && deadline.expired()) return inner_->wait(milliseconds(1));
    if (watchdog_->failed() && !gate->wait(kGrace)) return false;
  }
  return inner_->wait(kNoTimeout);
}

bool ForwardedWork::wait(std::chrono::milliseconds timeout) {
  if (!inner_->isCompleted()) watchdog_->check_process(*record_);
  bool done = false;
  try {
    done = wait_for_inner(timeout);
  } catch (...) {
    rethrow_inner(*watchdog_, *record_);
  }
  if (!done) {  // what Gloo makes of an abort()
    watchdog_->finish(*record_, "aborted");
    watchdog_->rethrow(*record_, "aborted", true);
  }
  if (last_) last_->take();
  watchdog_->finish(*record_, "");
  return done;
}

void ForwardedWork::abort() { inner_->abort(); }

FuturePtr ForwardedWork::getFuture() {
  return inner_->getFuture()->then(
      [record = record_, watchdog = watchdog_, outputs = outputs_,
       last = last_](c10::ivalue::Future& done) {
        if (done.hasError()) {
          try {
            std::rethrow_exception(done.exception_ptr());
          } catch (...) {
            rethrow_inner(*watchdog, *record);
          }
        }
        if (last) last->take();
        watchdog->finish(*record, "");
        return outputs.empty() ? done.value() : c10::IValue(outputs);
      },
      c10::ListType::create(c10::TensorType::get()));
}

FuturePtr ForwardedWork::getFutureResult() { return inner_->getFutureResult(); }
float ForwardedWork::getDuration() const { return inner_->getDuration(); }
uint64_t ForwardedWork::getSequencenumber() const { return record_->number; }

}  // namespace cgx
