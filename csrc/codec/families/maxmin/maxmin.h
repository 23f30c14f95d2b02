// The number and the choices of `maxmin` as code reads them, on the host and on a GPU. All else
// about it is in its declaration (maxmin.cc).
#pragma once

#include "base/host_device.h"

namespace cgx {

/// On the wire.
constexpr uint8_t kMaxMinFamily = 1;

/// In the order of the parameter's choices.
enum class Rounding : uint8_t { kNearest = 0, kStochastic = 1 };

}  // namespace cgx
