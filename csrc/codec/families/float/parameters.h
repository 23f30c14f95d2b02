// Parameters of the codecs that round to formats.
#pragma once

#include <cstdint>
#include <vector>

#include "base/parameter.h"

namespace cgx {

/// On the wire.
constexpr uint8_t kFloatFamily = 6, kBlockFamily = 7;

namespace rounded {

/// The parameters of formats::casting_parameters() that a codec can carry, each with its variable; `seed`.
std::vector<Parameter> parameters();
/// Of blocks: format, scale_rounding, rounding, random_bits and seed.
std::vector<Parameter> block_parameters();

}  // namespace rounded
}  // namespace cgx
