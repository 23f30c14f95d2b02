// Which codecs error feedback works with.
#pragma once

#include "codec/codec.h"

namespace cgx {

/// ConfigError for a codec whose errors may exceed the values: residuals would grow without bound
/// (docs/numerics.md, Error feedback).
void check_feedback(const Codec& codec);

}  // namespace cgx
