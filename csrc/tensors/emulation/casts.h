// Casts of tensors to formats of numbers and back: what is left of their values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "codec/cast.h"

namespace cgx {

/// What random numbers of a cast are a function of, beside the number of the element: local_key() of
/// codec/ops/random.h.
struct CastKey {
  uint64_t seed = 0, step = 0, number = 0;
};

/// The cast of a text as Cast::describe() writes it; remembered. ConfigError.
std::shared_ptr<const Cast> cast_of_text(std::string_view text);

/// float32, float64, float16 or bfloat16, on the CPU or a GPU. A new tensor of the same shape, dtype and
/// strides. statistics: null, or becomes seven numbers in float64, in the order of CastStatistics.
/// TypeError, ValueError.
at::Tensor cast_tensor(const Cast& cast, const at::Tensor& tensor, const CastKey& key,
                       at::Tensor* statistics);
/// The same to `out`, of the same shape and dtype, which may be `tensor`.
void cast_tensor_out(const Cast& cast, const at::Tensor& tensor, const CastKey& key,
                     const at::Tensor& out, at::Tensor* statistics);

}  // namespace cgx
