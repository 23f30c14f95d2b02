// The argument of the kernel of dropout.
#pragma once

#include "codec/gpu/run.h"
#include "codec/ops/random.h"

namespace cgx::dropping::on_gpu {

struct Call {
  const unsigned char* x;
  unsigned char* y;
  uint64_t values;
  uint64_t count;  // parts of gpu::kPartValues
  double scale;    // of what stays
  float keep;      // 1 - p
  RandomKey key;
  uint8_t type;  // a gpu::Type, or gpu::kWideType
};

}  // namespace cgx::dropping::on_gpu
