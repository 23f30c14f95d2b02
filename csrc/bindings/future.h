#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Futures of one tensor, for communication hooks.
void bind_future(pybind11::module_& m);

}  // namespace cgx
