// State of a group's autotuner, as Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include "reduce/tuning/autotuner.h"

namespace cgx {

/// A decision's key in dicts.
inline const char* key_of(Decision decision) {
  constexpr const char* kKeys[kDecisions] = {"exact", "half", "asked"};
  return kKeys[static_cast<size_t>(decision)];
}

/// The seconds of the decisions that have some.
inline pybind11::dict by_decision(const Seconds& seconds) {
  pybind11::dict out;
  for (Decision decision : kAllDecisions) {
    const double one = seconds[static_cast<size_t>(decision)];
    if (one >= 0) out[key_of(decision)] = one;
  }
  return out;
}

/// The report as a dict: see torch_cgx.tuning.
pybind11::dict to_dict(const std::vector<TuningRow>& report);

}  // namespace cgx
