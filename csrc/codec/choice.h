// Which codec the settings of a group or a call mean. The rule stands here and nowhere else: bits
// above 8 are exact, but for 16, which is the codec `half`.
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

/// Whether so many bits mean values in the tensor's own type.
constexpr bool is_exact(int64_t bits) { return bits > kMostBits && bits != kHalfBits; }

/// The settings that choose a codec and its parameters: `bits`, `codec`, and those of all families,
/// each once. Where families share a setting, its range covers all of theirs, and each checks its
/// own.
const std::vector<Parameter>& codec_settings();

/// `setting` gives the canonical text of each of them. ConfigError: the codec does not take a
/// value; names it and what is allowed.
std::shared_ptr<const Codec> choose_codec(
    const std::function<std::string(const std::string&)>& setting);

}  // namespace cgx
