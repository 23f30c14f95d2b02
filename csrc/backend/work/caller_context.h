// A profiler that the caller's thread has switched on goes on in the worker's.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

#include <memory>

namespace cgx {

/// Made on the caller's thread, entered on the worker's; does nothing, and costs next to nothing,
/// while no profiler is on.
class CallerContext {
 public:
  CallerContext() {
    if (at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) {
      state_ = std::make_shared<at::ThreadLocalState>();
    }
  }

  std::unique_ptr<at::ThreadLocalStateGuard> enter() const {
    return state_ ? std::make_unique<at::ThreadLocalStateGuard>(*state_) : nullptr;
  }

 private:
  std::shared_ptr<at::ThreadLocalState> state_;
};

}  // namespace cgx
