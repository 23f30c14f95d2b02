#pragma once

namespace cgx {

/// Version of the package and of its extension module; tests compare it with pyproject.toml.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace cgx
