#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Options (a c10d Backend.Options) and ProcessGroupCGX (a c10d Backend). Needs torch.distributed
/// to be imported.
void bind_group(pybind11::module_& module);

}  // namespace cgx
