// The SIMD level that the codecs run on.
//
// It is the best level that the CPU has, unless the environment variable CGX_CPU_LEVEL (scalar,
// avx2, avx512, neon) pins another when the first loop runs. Results do not depend on it.
// Thread-safe.
#pragma once

#include <string>

#include "base/parameter.h"

namespace cgx {

/// CGX_CPU_LEVEL: a choice among the levels of this CPU.
const Parameter& cpu_level_variable();

/// Name of the level in force. Errors: ConfigError that names CGX_CPU_LEVEL, its value and what
/// this CPU allows.
std::string cpu_level();

/// The level that CGX_CPU_LEVEL and the CPU would choose now, also if another is in force. Errors:
/// as above.
std::string default_cpu_level();

/// Pins another level for the whole process, at once; calls that are running finish on the old one.
/// An empty name returns to the choice made by CGX_CPU_LEVEL and the CPU. Errors: ConfigError, and
/// nothing has changed.
void set_cpu_level(const std::string& name);

/// Levels that this CPU can run, worst first, comma-separated.
std::string cpu_levels();

}  // namespace cgx
