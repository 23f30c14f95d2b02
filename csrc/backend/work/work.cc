#include "backend/work/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <string_view>
#include <utility>

#include "backend/python_error.h"
#include "backend/torch_text.h"
#include "base/error.h"

namespace cgx {
namespace {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// What c10d::Work::wait() says when its own time is up, while the collective goes on.
constexpr std::string_view kWaitRanOut = "Operation timed out!";

// Devices whose streams a consumer must synchronise with. The CPU has none, and Future wants it
// left out.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.device().is_cpu() &&
        std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

FuturePtr make_tensor_list_future(const std::vector<at::Tensor>& outputs) {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  devices_of(outputs));
}

FuturePtr make_result_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::AnyEnumType::get());
}

// A future whose value is on a GPU stands for the work on the stream that is current when it is
// completed.
void settle(const FuturePtr& future, const std::exception_ptr& error,
            const std::vector<at::Tensor>& outputs, const GpuCall* gpu) {
  std::optional<c10::StreamGuard> on_side;
  if (gpu != nullptr) on_side.emplace(gpu->side());
  if (error) {
    future->setErrorIfNeeded(error);
  } else {
    future->markCompleted(c10::IValue(outputs));
  }
}

}  // namespace

namespace {

// Called while an exception of an inner work is handled.
[[noreturn]] void rethrow_inner(Watchdog& watchdog, CallRecord& record) {
  try {
    throw;
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

bool EngineWork::wait(std::chrono::milliseconds timeout) {
  try {
    const bool done = Work::wait(timeout);
    synchronize();
    return done;
  } catch (const c10::Error& e) {
    if (std::string_view(e.what()).find(kWaitRanOut) == std::string_view::npos) throw;
    const Failure late{FailureKind::kTimeout,
                       str_of("not done after a wait of ", timeout.count(), " ms; it goes on")};
    std::rethrow_exception(for_python(late, record_->error_text(late)));
  }
}

namespace {

class WorkInOrder final : public c10d::Work {
 public:
  WorkInOrder(c10d::OpType op, std::vector<at::Tensor> tensors)
      : Work(-1, op), tensors_(std::move(tensors)) {
    future_ = make_tensor_list_future(tensors_);
    future_->markCompleted(c10::IValue(tensors_));
    finish();
  }
  // Not base's, which want a future of a work that ends later.
  std::vector<at::Tensor> result() override { return tensors_; }
  FuturePtr getFuture() override { return future_; }
  void synchronize() override { future_->wait(); }  // for streams other than the caller's

 private:
  const std::vector<at::Tensor> tensors_;
  FuturePtr future_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> work_in_order(c10d::OpType op, std::vector<at::Tensor> tensors) {
  return c10::make_intrusive<WorkInOrder>(op, std::move(tensors));
}

bool succeeded(const c10d::Work& work) {
  try {
    return work.isSuccess();
  } catch (const c10::NotImplementedError&) {
    return work.exception() == nullptr;
  }
}

EngineWork::EngineWork(CallRecordPtr record, const char* title,
                       const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                       std::shared_ptr<TaskQueue> callbacks, std::shared_ptr<GpuCall> gpu)
    : Work(record->group->rank, record->shape.op, title, inputs),
      record_(std::move(record)),
      outputs_(std::move(outputs)),
      callbacks_(std::move(callbacks)),
      gpu_(std::move(gpu)) {}

bool EngineWork::isCompleted() { return Work::isCompleted() && (!gpu_ || gpu_->query()); }

void EngineWork::synchronize() {
  if (gpu_) gpu_->make_stream_wait();
}

void EngineWork::started() { start_ = Clock::now(); }

void EngineWork::complete(std::exception_ptr error) {
  end_ = Clock::now();
  FuturePtr future, result;
  {
    // Before finish(): who asks for a future after wait() gets one that is done.
    std::lock_guard<std::mutex> lock(mutex_);
    settled_ = true;
    error_ = error;
    future = future_;
    result = future_result_;
  }
  finish(error);  // wakes the waiters
  if (!future && !result) return;
  auto task = [error, future, result, outputs = outputs_, gpu = gpu_] {
    if (future) settle(future, error, outputs, gpu.get());
    if (result) {
      result->markCompleted(c10::IValue(
          static_cast<uint8_t>(error ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS)));
    }
  };
  // After shutdown nobody is left to run callbacks elsewhere; a future must still never stay open.
  if (!callbacks_->submit(task)) task();
}

std::vector<at::Tensor> EngineWork::result() { return outputs_; }

FuturePtr EngineWork::getFuture() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (future_) return future_;
  future_ = make_tensor_list_future(outputs_);
  if (!settled_) return future_;  // complete() will find it
  const std::exception_ptr error = error_;
  lock.unlock();
  settle(future_, error, outputs_, gpu_.get());
  return future_;
}

FuturePtr EngineWork::getFutureResult() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (future_result_) return future_result_;
  future_result_ = make_result_future();
  if (!settled_) return future_result_;
  const bool failed = error_ != nullptr;
  lock.unlock();
  future_result_->markCompleted(c10::IValue(
      static_cast<uint8_t>(failed ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS)));
  return future_result_;
}

float EngineWork::getDuration() const {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(completed_, "cgx: getDuration() before the work has ended");
  return std::chrono::duration<float, std::milli>(end_ - start_).count();
}

uint64_t EngineWork::getSequencenumber() const { return record_->number; }

void EngineWork::abort() {
  TORCH_CHECK(false, "cgx: a single work cannot be aborted; abort the process group");
}

ForwardedWork::ForwardedWork(c10::intrusive_ptr<c10d::Work> inner, CallRecordPtr record,
                             std::shared_ptr<Watchdog> watchdog, std::vector<at::Tensor> outputs)
    : Work(-1, record->shape.op),
      inner_(std::move(inner)),
      record_(std::move(record)),
      watchdog_(std::move(watchdog)),
      outputs_(std::move(outputs)) {
  record_->watch_work(inner_);
}

bool ForwardedWork::isCompleted() { return inner_->isCompleted(); }
bool ForwardedWork::isSuccess() const { return succeeded(*inner_); }
std::exception_ptr ForwardedWork::exception() const { return inner_->exception(); }
int ForwardedWork::sourceRank() const { return inner_->sourceRank(); }
std::vector<at::Tensor> ForwardedWork::result() {
  return outputs_.empty() ? inner_->result() : outputs_;
}
void ForwardedWork::synchronize() { inner_->synchronize(); }

bool ForwardedWork::wait(std::chrono::milliseconds timeout) {
  bool done = false;
  try {
    done = inner_->wait(timeout);
  } catch (...) {
    rethrow_inner(*watchdog_, *record_);
  }
  if (!done) {  // what Gloo makes of an abort()
    watchdog_->finish(*record_, "aborted");
    watchdog_->rethrow(*record_, "aborted", true);
  }
  watchdog_->finish(*record_, "");
  return done;
}

void ForwardedWork::abort() { inner_->abort(); }

FuturePtr ForwardedWork::getFuture() {
  return inner_->getFuture()->then(
      [record = record_, watchdog = watchdog_, outputs = outputs_](c10::ivalue::Future& done) {
        if (done.hasError()) {
          try {
            std::rethrow_exception(done.exception_ptr());
          } catch (...) {
            rethrow_inner(*watchdog, *record);
          }
        }
        watchdog->finish(*record, "");
        return outputs.empty() ? done.value() : c10::IValue(outputs);
      },
      c10::ListType::create(c10::TensorType::get()));
}

FuturePtr ForwardedWork::getFutureResult() { return inner_->getFutureResult(); }
float ForwardedWork::getDuration() const { return inner_->getDuration(); }
uint64_t ForwardedWork::getSequencenumber() const { return record_->number; }

GroupedWork::GroupedWork(std::vector<c10::intrusive_ptr<c10d::Work>> works,
                         std::vector<at::Tensor> outputs)
    : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)), outputs_(std::move(outputs)) {}

bool GroupedWork::isCompleted() {
  for (const auto& work : works_) {
    if (!work->isCompleted()) return false;
  }
  return true;
}

bool GroupedWork::isSuccess() const {
  for (const auto& work : works_) {
    if (!succeeded(*work)) return false;
  }
  return true;
}

std::exception_ptr GroupedWork::exception() const {
  for (const auto& work : works_) {
    if (auto error = work->exception()) return error;
  }
  return nullptr;
}

std::vector<at::Tensor> GroupedWork::result() { return outputs_; }

void GroupedWork::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

bool GroupedWork::wait(std::chrono::milliseconds timeout) {
  // All are waited for, also after an error: their tensors are in use until then.
  std::exception_ptr first;
  bool ok = true;
  for (const auto& work : works_) {
    try {
      ok = work->wait(timeout) && ok;
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
  return ok;
}

void GroupedWork::abort() {
  for (const auto& work : works_) work->abort();
}

FuturePtr GroupedWork::getFuture() {
  c10::List<FuturePtr> futures(c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [outputs = outputs_](c10::ivalue::Future& all) {
        const c10::IValue value = all.value();
        for (const c10::IValue& one : value.toListRef()) {
          const auto future = one.toFuture();
          if (future->hasError()) std::rethrow_exception(future->exception_ptr());
        }
        return c10::IValue(outputs);
      },
      c10::ListType::create(c10::TensorType::get()));
}

}  // namespace cgx
