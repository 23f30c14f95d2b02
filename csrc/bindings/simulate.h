// The engine of a group that is simulated in this process, or only costed.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// simulated_group, simulate_all_reduce, predict_all_reduce; after bind_group.
void bind_simulate(pybind11::module_& module);

}  // namespace cgx
