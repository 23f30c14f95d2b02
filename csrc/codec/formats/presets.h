// Formats that have a name.
#pragma once

#include <span>
#include <string>

namespace cgx::formats {

struct Preset {
  const char* name;  // "e4m3fn"
  const char* text;  // of its cast: "float variant=fn"
  const char* used;  // where it is used
};

/// In the order of tables.
std::span<const Preset> presets();

}  // namespace cgx::formats
