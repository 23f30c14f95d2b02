// Python bindings that need no torch headers.
#pragma once

#include <pybind11/pybind11.h>

#include "reduce/stats.h"

namespace cgx {

/// simulate_all_reduce, simulate_shards, register_layer and its companions, settings.
void bind_engine(pybind11::module_& module);

/// A snapshot as {"calls": ..., "bytes_sent": ...}; the keys are documented at torch_cgx.stats.
pybind11::dict to_dict(const StatsSnapshot& stats);

}  // namespace cgx
