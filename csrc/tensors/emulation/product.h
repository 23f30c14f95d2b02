// Matrix products of tensors on the CPU whose sums are made in a format of numbers (codec/gemm/product.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace cgx {

/// a [..., M, K] times b [..., K, N], both float32 of any strides, whose other dimensions broadcast: a new
/// contiguous float32 tensor [..., M, N].
///   accumulate   the text of a cast of numbers by themselves, or "hopper14"
///   block        0: all terms are added one by one
/// TypeError, ValueError: the tensors do not go together; the format shares scales, draws random numbers or
/// has no zero; hopper14 with Kahan's rule or blocks.
at::Tensor product_tensor(const at::Tensor& a, const at::Tensor& b, std::string_view accumulate,
                          bool kahan, int64_t block);

}  // namespace cgx
