// Python's global lock, seen from destructors that may run with or without it.
#pragma once

#include <Python.h>

namespace cgx {

/// Releases the lock for a scope if this thread holds it. A thread must not hold it while it waits
/// for threads that run Python callbacks.
class ReleaseGilIfHeld {
 public:
  ReleaseGilIfHeld()
      : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~ReleaseGilIfHeld() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  ReleaseGilIfHeld(const ReleaseGilIfHeld&) = delete;
  ReleaseGilIfHeld& operator=(const ReleaseGilIfHeld&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace cgx
