// First frame of an announced message on the wire: the length in kFrame bytes, then as much of the
// message as fits into kEager bytes together with them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/messages.h"
#include "comm/relay/relay.h"

namespace cgx::relay {

inline constexpr size_t kFrame = sizeof(uint64_t);
inline constexpr size_t kEager = kRelayEagerBytes;

static_assert((kFrame + Messages::kPayloadOffset) % 64 == 0,
              "buffers are 64-byte aligned, messages follow the frame");

}  // namespace cgx::relay
