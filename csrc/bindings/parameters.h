// Parameters between Python's values and their canonical texts.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "base/parameter.h"

namespace cgx {

/// The canonical text of a Python value. `where`: the argument that held the value, as
/// "Options(bits='x')" or "config: bits='x'", for errors. TypeError: a wrong type, so that bits=4.0
/// is no silent 4. ConfigError (ValueError): a value that is not allowed.
std::string canonical_of(const Parameter& parameter, const std::string& where,
                         const pybind11::handle& value);

pybind11::object value_of(const Parameter& parameter, const std::string& text);

/// name, variable, kind, default, low, high, choices, per_call, meaning, type.
pybind11::dict to_dict(const Parameter& parameter);

}  // namespace cgx
