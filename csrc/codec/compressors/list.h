// The families of compressors: a line for each. Tables list them in this order.
#pragma once

#include "codec/compressor.h"

#define CGX_COMPRESSORS(COMPRESSOR) \
  COMPRESSOR(bounded)               \
  COMPRESSOR(bdi)                   \
  COMPRESSOR(cuda_float_compress)

namespace cgx {

/// const CompressorFamily& bounded_compressor(), and so on: each is defined in the folder of its format.
#define CGX_DECLARE(name) const CompressorFamily& name##_compressor();
CGX_COMPRESSORS(CGX_DECLARE)
#undef CGX_DECLARE

}  // namespace cgx
