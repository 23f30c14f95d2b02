// Factories of the codecs that are always there; the registry starts with them.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace cgx {

/// Errors: ConfigError that names the field, its value and what is allowed.
std::shared_ptr<const Codec> make_maxmin(const CodecSpec& spec);

}  // namespace cgx
