// Parameters of the codecs that round to formats.
#pragma once

#include <vector>

#include "base/parameter.h"

namespace cgx::rounded {

/// The parameters of formats::casting_parameters() that a codec can carry, each with its variable; `seed`.
std::vector<Parameter> parameters();
/// Of blocks: format, scale_rounding, rounding, random_bits and seed.
std::vector<Parameter> block_parameters();

}  // namespace cgx::rounded
