// The runs of `maxmin` in a table for the kernels.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "codec/config.h"
#include "codec/gpu/run_table.h"

namespace cgx::maxmin {

/// Implements Family::gpu_runs: one entry for the coded values, and one for a rest that is sent
/// raw.
void gpu_runs(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
              DType dtype, uint64_t payload);

}  // namespace cgx::maxmin
