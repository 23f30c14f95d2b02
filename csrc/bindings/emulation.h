// The formats of emulation, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

void bind_emulation(pybind11::module_& m);

}  // namespace cgx
