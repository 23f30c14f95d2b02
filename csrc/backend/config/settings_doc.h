// What the settings mean, in words: for help() and for the README's table.
#pragma once

#include <string>

#include "backend/config/settings.h"

namespace cgx {

/// A line.
const char* meaning_of(const Setting& setting);

/// Of torch_cgx.Options: every setting with its type, default, allowed values, variable and
/// meaning.
std::string options_doc();

}  // namespace cgx
