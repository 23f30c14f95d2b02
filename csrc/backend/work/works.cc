#include "backend/work/works.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <utility>

namespace cgx {
namespace {

// Devices whose streams a consumer must synchronise with. The CPU has no streams, and Future does
// not accept it.
std::vector<c10::Device> devices_of(const Tensors& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.device().is_cpu() &&
        std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

class WorkInOrder final : public c10d::Work {
 public:
  WorkInOrder(c10d::OpType op, Tensors tensors) : Work(-1, op), tensors_(std::move(tensors)) {
    future_ = make_tensor_list_future(tensors_);
    future_->markCompleted(c10::IValue(tensors_));
    finish();
  }
  // The base class would need a future that completes later.
  Tensors result() override { return tensors_; }
  FuturePtr getFuture() override { return future_; }
  void synchronize() override { future_->wait(); }  // for streams other than the caller's

 private:
  const Tensors tensors_;
  FuturePtr future_;
};

}  // namespace

FuturePtr make_tensor_list_future(const Tensors& outputs) {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  devices_of(outputs));
}

WorkPtr work_in_order(c10d::OpType op, Tensors tensors) {
  return c10::make_intrusive<WorkInOrder>(op, std::move(tensors));
}

bool succeeded(const c10d::Work& work) {
  try {
    return work.isSuccess();
  } catch (const c10::NotImplementedError&) {
    return work.exception() == nullptr;
  }
}

GroupedWork::GroupedWork(std::vector<WorkPtr> works, Tensors outputs)
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

Tensors GroupedWork::result() { return outputs_; }

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
