// Python bindings that need no torch headers.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// register_layer and its companions, settings.
void bind_engine(pybind11::module_& module);

}  // namespace cgx
