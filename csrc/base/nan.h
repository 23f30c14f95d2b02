// The one NaN that is written, of each type: quiet, positive, without a payload.
//
// Arithmetic makes different ones: ffc00000 on x86, 7fffffff on NVIDIA's GPUs, and what an operand
// was on most machines. So what was computed, rounded or decoded becomes these where it is stored: in
// a message, in a tensor. Copies of values keep their bits.
#pragma once

#include "base/host_device.h"

namespace cgx {

constexpr uint32_t kNan = 0x7fc00000u;
constexpr uint64_t kWideNan = 0x7ff8000000000000u;
constexpr uint16_t kHalfNan = 0x7e00u, kBFloat16Nan = 0x7fc0u;

/// x, or the NaN if it is one.
CGX_HD float one_nan(float x) { return x == x ? x : from_bits(kNan); }
CGX_HD double one_nan(double x) { return x == x ? x : wide_from_bits(kWideNan); }

}  // namespace cgx
