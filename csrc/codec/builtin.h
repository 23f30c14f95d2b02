// Factories of the codecs that are always there; the registry starts with them.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace cgx {

/// Errors: ConfigError that names the field, its value and what is allowed.
std::shared_ptr<const Codec> make_maxmin(const CodecSpec& spec);

/// "bf16" and "fp16", by spec.name. Of the spec only name and bits (16) count: bucket size,
/// rounding, seed and skip mean nothing here, and what comes back has none of them in its spec().
std::shared_ptr<const Codec> make_half(const CodecSpec& spec);

}  // namespace cgx
