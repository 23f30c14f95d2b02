// The arguments of the kernels of a table of levels. Each thread takes eight values, so their codes fill
// whole bytes.
#pragma once

#include "base/host_device.h"
#include "codec/gpu/run.h"

namespace cgx::levels::on_gpu {

inline constexpr uint32_t kMostLevelsOfKernels = 16;

/// Borders and levels that a table lacks for 16 are infinite, and the last level.
struct Table {
  float border[kMostLevelsOfKernels];  // a float32 is above one where it is above the border itself
  float level[kMostLevelsOfKernels];
  double wide_border[kMostLevelsOfKernels];
  double wide_level[kMostLevelsOfKernels];
  uint32_t bits;   // of a code
  uint32_t depth;  // steps of the search
  uint32_t borders;
  uint32_t magnitude;  // 1: values are compared without their signs
};

struct EncodeCall {
  const unsigned char* x;
  unsigned char* codes;
  uint64_t values;
  uint64_t count;  // parts
  Table table;
  uint8_t type;
};

struct MultiplyCall {
  const unsigned char* x;
  const unsigned char* codes;
  unsigned char* y;
  uint64_t values;
  uint64_t count;  // parts
  Table table;
  uint8_t type;
};

}  // namespace cgx::levels::on_gpu
