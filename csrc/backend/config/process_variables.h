// Environment variables that the process reads, not a group: they have no option.
#pragma once

#include <string>
#include <vector>

#include "base/parameter.h"

namespace cgx {

std::vector<const Parameter*> process_variables();

/// ConfigError if no variable has this name.
const Parameter& process_variable(const std::string& name);

}  // namespace cgx
