// The codec of rounded values, for the families that are made of it: `float`, and `half`, its two formats
// of 16 bits with names.
#pragma once

#include <memory>

#include "codec/codec.h"
#include "codec/formats/format.h"
#include "codec/gpu/run_table.h"

namespace cgx::rounded {

/// ConfigError: the format has no codes of 2 to 8 or 16 bits. seed: of stochastic rounding.
std::shared_ptr<const Codec> make_codec(const CodecConfig& config, const formats::Casting& casting,
                                        uint64_t seed);

/// As CodecMaker has them.
void bound(const formats::Casting& casting, DType dtype, const float* x, size_t n, double* limits);
void gpu_runs(const formats::Casting& casting, gpu::RunTable& table, const gpu::CodecRun& run,
              DType dtype, uint64_t payload);

}  // namespace cgx::rounded
