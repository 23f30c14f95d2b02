#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// CallThreads, SafeAfterFork, intra_op_threads(), thread_limits(): see _C.pyi.
void bind_threads(pybind11::module_& m);

}  // namespace cgx
