// The family number of `float`, for the host and for kernels.
#pragma once

#include "base/host_device.h"

namespace cgx {

/// On the wire.
constexpr uint8_t kFloatFamily = 6;

}  // namespace cgx
