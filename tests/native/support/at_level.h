// The SIMD level in force for the time of a scope; after it the level before.
#pragma once

#include <string>

#include "codec/ops/level.h"

namespace cgx::native {

struct AtLevel {
  explicit AtLevel(const std::string& name) : before(cpu_level()) { set_cpu_level(name); }
  ~AtLevel() { set_cpu_level(before); }
  std::string before;
};

}  // namespace cgx::native
