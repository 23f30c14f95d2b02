// Codecs as arguments of operators: by their canonical text (CodecConfig::describe()), which survives
// tracing, pickling and export.
#pragma once

#include <memory>
#include <string_view>

#include "codec/codec.h"

namespace cgx {

/// The codec of a text, which is parsed when it is new, and else found. ConfigError: it is no text of
/// a codec. Thread-safe.
std::shared_ptr<const Codec> codec_of_text(std::string_view text);

}  // namespace cgx
