// Integers and bools in the bits that they need: operators pack_integers and unpack_integers
// (codec/activations/integers). They run on the CPU; elsewhere torch_cgx/activations uses torch's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cgx {

/// uint8, packed_bytes(numel, bits) of them. Values in row-major order. Errors: TypeError and ValueError
/// for other tensors; ConfigError: bits.
at::Tensor pack_integers(const at::Tensor& tensor, int64_t low, int64_t bits);

/// The `numel` values of type `type`, in one dimension.
at::Tensor unpack_integers(const at::Tensor& codes, int64_t low, int64_t bits, int64_t numel,
                           at::ScalarType type);

}  // namespace cgx
