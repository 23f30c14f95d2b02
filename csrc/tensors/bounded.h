// The stages of error-bounded compression that run where a tensor is: operators bounded_look,
// bounded_encode and bounded_decode. Between them the CPU chooses how each block is written
// (codec/bounded/gpu/slab.h), and an entropy coder runs.
//
// On a GPU kernels run on its current stream, after the caller's earlier work there, and the host
// waits for nothing; on the CPU the same code runs in a loop. Errors: TypeError and ValueError for a
// tensor of another dtype, layout or size than documented; ConfigError; ResourceError without a driver
// or kernels; RuntimeError while the stream is captured into a graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cgx {

/// What values may become: the arguments of bounded::Maps beside the type.
struct BoundedKey {
  int64_t kind;
  double bound;
  int64_t version;
};

/// Facts about each block of a contiguous tensor: uint8, Slab::look_bytes() for each, where it is.
at::Tensor bounded_look(const at::Tensor& tensor, const BoundedKey& key);

/// The parts of all blocks, uint8, where the tensor is. forms: Slab::forms() with forms chosen, uint8
/// on the CPU; bytes: what lay_out() gave.
at::Tensor bounded_encode(const at::Tensor& tensor, const at::Tensor& forms, int64_t bytes,
                          const BoundedKey& key);

/// Writes the wanted values of blocks to `out`. values: of all blocks; parts: on the device of `out`.
/// Returns an int32 for each block, there: 1 if its parts contradict each other, else 0.
at::Tensor bounded_decode(const at::Tensor& parts, const at::Tensor& forms, int64_t values,
                          const BoundedKey& key, const at::Tensor& out);

}  // namespace cgx
