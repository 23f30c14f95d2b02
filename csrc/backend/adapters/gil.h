// Python's global lock, seen from destructors that may run with or without it, and from threads that
// outlive the interpreter.
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

/// Releases the lock, which this thread holds, for a scope. As pybind11's, but for the end of the
/// interpreter: until Python 3.13 it then unwinds the threads that ask for the lock, from within a
/// destructor, which has to let that pass.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() noexcept(false) { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace cgx
