// The Codec over rotated blocks: layout of the payload and its parts. Families bring the loops.
//
//   key     state of the first value's sign, 8 bytes, little-endian; nothing in a run of no values
//   scales  S of each block, float32, little-endian
//   codes   a stream of bits, lowest first; zeros fill the last byte
#pragma once

#include <memory>

#include "codec/codec.h"
#include "codec/gpu/run_table.h"
#include "codec/rotation/loops.h"

namespace cgx::rotation {

/// Parameters of the configuration: bits, block_size, scale, seed.
std::shared_ptr<const Codec> make_block_codec(const CodecConfig& config,
                                              const cpu::ByLevel<Loops>& by_level);

/// The declarations of `block_size`, `scale` and `seed`, behind that of `bits`.
std::vector<Parameter> parameters_with(Parameter bits);

/// Implements Family::bound by the bounds of formulas.h.
void bound(const CodecConfig& config, DType dtype, const float* x, size_t n, double* limits);

/// Appends the run to the table. together: blocks that kernels of warps quantize at once, if a tile
/// has room for them.
void append_run(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
                uint64_t payload, uint32_t together);

/// Implements Family::gpu_runs.
template <uint32_t together>
void gpu_runs(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run, DType,
              uint64_t payload) {
  append_run(config, table, run, payload, together);
}

}  // namespace cgx::rotation
