// Blocks of elements with a shared scale: what a declaration says of them.
#pragma once

#include <cstddef>

#include "codec/formats/parameters.h"
#include "codec/formats/scale.h"

namespace cgx::formats {

/// Values of a block: `size` of each of `rows` rows.
struct Blocks {
  Casting element;
  size_t size = 32, rows = 1;
  Scale scale = Scale::kE8m0;
  ScaleRounding rounding = ScaleRounding::kFloor;
};

/// The parameters of a declaration that describe Blocks.
std::vector<Parameter> block_parameters();
/// ConfigError: parameters that do not go together.
Blocks blocks_of(const Config& config);

}  // namespace cgx::formats
