// The number of `float`, as the host and kernels know it.
#pragma once

#include "base/host_device.h"

namespace cgx {

/// On the wire.
constexpr uint8_t kFloatFamily = 6;

}  // namespace cgx
