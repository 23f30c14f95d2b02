// State of a group's autotuner, as Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include "reduce/tuning/autotuner.h"

namespace cgx {

/// A choice's key in dicts.
inline const char* key_of(Choice choice) {
  constexpr const char* kKeys[kChoices] = {"exact", "half", "asked"};
  return kKeys[static_cast<size_t>(choice)];
}

/// The seconds of the choices that have some.
inline pybind11::dict by_choice(const Estimates& seconds) {
  pybind11::dict out;
  for (Choice choice : kAllChoices) {
    const double estimate = seconds[static_cast<size_t>(choice)];
    if (estimate >= 0) out[key_of(choice)] = estimate;
  }
  return out;
}

inline pybind11::dict to_dict(const LinkModel& link) {
  pybind11::dict out;
  out["latency"] = link.latency;
  out["seconds_per_byte"] = link.seconds_per_byte;
  out["seconds_per_value"] = link.seconds_per_value;
  return out;
}

/// The report as a dict: see torch_cgx.tuning.
pybind11::dict to_dict(const TuningReport& report);

}  // namespace cgx
