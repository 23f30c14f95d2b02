// Where messages lie in memory of a device.
#pragma once

#include <cstddef>

#include "comm/messages.h"

namespace cgx {

/// Bytes in front of a message, so that its payload is aligned as the kernels need it: to 64 bytes.
inline constexpr size_t kShift = 64 - Messages::kPayloadOffset;

/// From one message of `bytes` bytes to the next.
inline constexpr size_t stride_of(size_t bytes) { return (bytes + kShift + 63) / 64 * 64; }

}  // namespace cgx
