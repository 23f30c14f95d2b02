// Bindings of the autotuner: what a group's one knows, and its model alone, for tests.
#pragma once

#include <pybind11/pybind11.h>

#include "reduce/tuning/autotuner.h"

namespace cgx {

/// The report as a dict: see torch_cgx.tuning.
pybind11::dict to_dict(const TuningReport& report);
void bind_tuning(pybind11::module_& m);

}  // namespace cgx
