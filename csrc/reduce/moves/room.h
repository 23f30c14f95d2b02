// The bytes of an exchange of moves inside a host: communicators of shared memory make room for more,
// those of a GPU's memory cannot.
#pragma once

#include <cstddef>

#include "codec/codec.h"
#include "reduce/engine_options.h"

namespace cgx {

/// Bytes aimed at for the values of an exchange of up to `messages` messages: `wanted`, or less.
size_t bytes_inside(const EngineOptions& options, size_t messages, size_t wanted);

/// ConfigError: an exchange of `messages` messages of one bucket each does not fit, and no room can be
/// made. Equal on all ranks.
void check_bucket(const Codec& codec, DType dtype, const EngineOptions& options, size_t messages);

}  // namespace cgx
