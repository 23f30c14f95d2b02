// Tensors of the operators for activations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "base/dtype.h"

namespace cgx {

/// float32, float64, float16 or bfloat16; for others a TypeError that names `what`.
DType floating_dtype(const char* what, at::ScalarType type);

/// Of a contiguous tensor on the CPU.
inline std::byte* bytes_of_host(const at::Tensor& tensor) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
}

}  // namespace cgx
