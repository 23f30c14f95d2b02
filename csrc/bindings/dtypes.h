#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds DTYPES, the engine's list of element types (csrc/base/dtype.h): what torch_cgx/_dtypes.py
/// reads.
void bind_dtypes(pybind11::module_& m);

}  // namespace cgx
