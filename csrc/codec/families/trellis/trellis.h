// The number of `trellis`, on the host and on a GPU. All else about it is in its declaration
// (trellis.cc).
#pragma once

#include "base/host_device.h"

namespace cgx {

/// On the wire.
constexpr uint8_t kTrellisFamily = 5;

}  // namespace cgx
