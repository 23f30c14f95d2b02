#include "tensors/activations/dropout.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "base/error.h"
#include "codec/activations/dropout/dropout.h"
#include "tensors/activations/floating.h"
#include "tensors/activations/gpu.h"
#include "tensors/checks.h"
#include "tensors/memory.h"
#include "tensors/threads.h"

namespace cgx {

at::Tensor dropout(const at::Tensor& tensor, double p, int64_t key) {
  const at::AutoDispatchBelowADInplaceOrView autograd;
  const SafeAfterFork one_thread;
  check_tensor("tensor", tensor);
  const DType dtype = floating_dtype("tensor.dtype", tensor.scalar_type());
  if (!(p >= 0 && p <= 1)) throw ConfigError(str_of("p is ", p, ", allowed: 0 to 1"));
  const at::Tensor x = readable(tensor);
  at::Tensor y = at::empty(x.sizes(), x.options());
  const RandomKey random = local_key(0, static_cast<uint64_t>(key), 0, 0);
  if (x.is_cuda()) {
    gpu_dropout(x, dtype, p, random, y);
    return y;
  }
  const std::byte* from = bytes_of_host(x);
  std::byte* to = bytes_of_host(y);
  in_parts(count_of(x), kPartStep, [&](size_t first, size_t n) {
    const size_t at = first * size_of(dtype);
    cgx::dropout(from + at, dtype, n, p, random, first, to + at);
  });
  return y;
}

}  // namespace cgx
