// The error-bounded compressor on tensors of a GPU: kernels on its current stream, after the caller's
// earlier work there; the host waits for nothing. torch_cgx/bounded/_cuda.py calls it.
//
// Errors: ConfigError for a tensor of another dtype, size or device than documented; ResourceError
// without a driver or kernels; RuntimeError while the stream is captured into a graph.
#pragma once

#include <ATen/core/Tensor.h>

#include "codec/bounded/gpu/slab.h"
#include "tensors/gpu/kernels.h"

namespace cgx {

/// x: the slab's values, contiguous. Returns slab.look_bytes() for each block, on the device.
at::Tensor gpu_bounded_look(const bounded::Slab& slab, const at::Tensor& x,
                            const LoadKernels& load);

/// Encodes the blocks of a slab whose forms are chosen and laid out. Returns their parts, `bytes` bytes on the
/// device.
at::Tensor gpu_bounded_encode(const bounded::Slab& slab, const at::Tensor& x, size_t bytes,
                              const LoadKernels& load);

/// parts: of all blocks, on the device of y; y: the tensor whose values the forms count, contiguous.
/// Returns an int32 for each block, on the device: 1 if its parts contradict each other, else 0.
at::Tensor gpu_bounded_decode(const bounded::Slab& slab, const at::Tensor& parts,
                              const at::Tensor& y, const LoadKernels& load);

}  // namespace cgx
