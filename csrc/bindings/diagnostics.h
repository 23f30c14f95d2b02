#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// The flight record, and the slot of comm/hooks.h as a capsule.
void bind_diagnostics(pybind11::module_& m);

}  // namespace cgx
