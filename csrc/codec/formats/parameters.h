// What a declaration says of a format, and of how values become its numbers.
#pragma once

#include <string>
#include <vector>

#include "codec/declaration.h"
#include "codec/formats/format.h"

namespace cgx::formats {

/// ConfigError, with `who` in front: the format has no number but zero, or numbers that float32 lacks.
void check(const std::string& who, const Format& format);

/// The parameters of a declaration that describe a Casting, with their defaults.
std::vector<Parameter> casting_parameters(int exponent, int mantissa, const char* variant,
                                          bool per_call);
/// These parameters, and behind them `rounding` and `random_bits`: of values between two `numbers`.
std::vector<Parameter> with_rounding(std::vector<Parameter> parameters, const std::string& numbers,
                                     const char* fallback = "nearest");
/// What a configuration with these parameters says. ConfigError: parameters that do not go together.
Casting casting_of(const Config& config);

}  // namespace cgx::formats
