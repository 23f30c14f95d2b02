// The kernels of warps, by name: cgx_<family>_<operation>_<type>, or without a type where one kernel
// serves all. codec.cu defines them.
#pragma once

#include <cstdint>

#include "codec/families/maxmin/maxmin.h"
#include "codec/families/rotated/rotated.h"
#include "codec/families/trellis/trellis.h"

namespace cgx::gpu {

struct WarpKernels {
  uint8_t family;
  const char* name;
  uint32_t warps;  // of a thread block
  bool typed;      // encode and decode have a kernel for each type
};

inline constexpr const char* kTypeNames[] = {"fp32", "fp16", "bf16"};  // in the order of Type
inline constexpr WarpKernels kWarpKernels[] = {{kMaxMinFamily, "maxmin", 4, true},
                                               {kRotatedFamily, "rotated", 4, false},
                                               {kTrellisFamily, "trellis", 2, false}};

}  // namespace cgx::gpu
