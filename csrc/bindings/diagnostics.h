#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// The flight record, and faults on order for tests.
void bind_diagnostics(pybind11::module_& m);

}  // namespace cgx
