#include "backend/work/engine_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <string_view>
#include <utility>

#include "backend/adapters/python_error.h"
#include "base/error.h"

namespace cgx {
namespace {

FuturePtr make_result_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::AnyEnumType::get());
}

// A future whose value is on a GPU stands for the work on the stream that is current when it is
// completed.
void settle(const FuturePtr& future, const std::exception_ptr& error, const Tensors& outputs,
            const GpuCall* gpu) {
  std::optional<c10::StreamGuard> on_side;
  if (gpu != nullptr) on_side.emplace(gpu->side());
  if (error) {
    future->setErrorIfNeeded(error);
  } else {
    future->markCompleted(c10::IValue(outputs));
  }
}

}  // namespace

EngineWork::EngineWork(CallRecordPtr record, const char* title, const Tensors& inputs,
                       Tensors outputs, std::shared_ptr<TaskQueue> callbacks,
                       std::shared_ptr<GpuCall> gpu)
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
    // Before finish(): a future that is requested after wait() must be complete.
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
  // After shutdown, or where the system starts no more threads, no other thread runs callbacks; a
  // future must still never stay open.
  bool elsewhere = false;
  try {
    elsewhere = callbacks_->submit(task);
  } catch (const ResourceError&) {
  }
  if (!elsewhere) task();
}

Tensors EngineWork::result() { return outputs_; }

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

bool EngineWork::wait(std::chrono::milliseconds timeout) {
  // The thread that would end it has stayed in the parent.
  TORCH_CHECK(process_ == process_token() || Work::isCompleted(), "cgx: ", record_->title().text(),
              ": the work belongs to the parent of this process; a forked child cannot use it");
  try {
    const bool done = Work::wait(timeout);
    synchronize();
    return done;
  } catch (const c10::Error& e) {
    if (std::string_view(e.what()).find(kWaitRanOut) == std::string_view::npos) throw;
    const Failure late{FailureKind::kTimeout, str_of("not done after a wait(timeout=...) of ",
                                                     timeout.count(), " ms; it goes on")};
    std::rethrow_exception(for_python(late, record_->error_text(late)));
  }
}

uint64_t EngineWork::getSequencenumber() const { return record_->number; }

void EngineWork::abort() {
  TORCH_CHECK(false, "cgx: a single work cannot be aborted; abort the process group");
}

}  // namespace cgx
