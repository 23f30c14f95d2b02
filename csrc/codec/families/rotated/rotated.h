// The number of `rotated`, on the host and on a GPU. All else about it is in its declaration
// (rotated.cc).
#pragma once

#include "base/host_device.h"

namespace cgx {

/// On the wire.
constexpr uint8_t kRotatedFamily = 4;

}  // namespace cgx
