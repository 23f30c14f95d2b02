// Values as a stream of codes, by SIMD level: lowest bit first, without gaps; zeros fill the last byte.
// Codes of 16 bits are little-endian.
#pragma once

#include <cstddef>

#include "codec/formats/coder.h"
#include "codec/formats/loops.h"

namespace cgx::formats {

/// The codes of the rounded values. index: the number of x[0].
void encode(const Coder& coder, const float* x, size_t n, RandomKey key, uint64_t index,
            std::byte* out);
/// y = value, or y += value where `add` is set. Each NaN is the one of base/nan.h.
void decode(const Coder& coder, const std::byte* in, size_t n, float* y, bool add);

}  // namespace cgx::formats
