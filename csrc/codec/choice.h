// Maps the settings of a group or a call to a codec. The rule stands here and nowhere else: up to 8
// bits are compressed, 16 bits are the codec `half`, all other numbers are exact.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/parameter.h"
#include "codec/codec.h"

namespace cgx {

inline constexpr int64_t kExactBits = 32, kHalfBits = 16, kMostBits = 8;

/// True if this number of bits means values in the tensor's own type.
constexpr bool is_exact(int64_t bits) { return bits > kMostBits && bits != kHalfBits; }

/// The settings that choose a codec and its parameters: `bits`, `codec`, and the settings of all
/// families, each once. The range of a setting that families share covers the ranges of all of
/// them; each family checks its own.
const std::vector<Parameter>& codec_settings();

/// `setting` returns the canonical text of each of these settings. ConfigError: the codec does not
/// take a value; the text names it and the allowed values.
std::shared_ptr<const Codec> choose_codec(
    const std::function<std::string(const std::string&)>& setting);

}  // namespace cgx
