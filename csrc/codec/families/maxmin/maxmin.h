// The choices of `maxmin` as code reads them. All else about it is in its declaration (maxmin.cc).
#pragma once

#include <cstdint>

namespace cgx {

/// In the order of the parameter's choices.
enum class Rounding : uint8_t { kNearest = 0, kStochastic = 1 };

}  // namespace cgx
