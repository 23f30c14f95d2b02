#include "tensors/activations/integers.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "codec/activations/integers/pack.h"
#include "tensors/activations/floating.h"
#include "tensors/checks.h"
#include "tensors/dtypes.h"
#include "tensors/memory.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

DType integer_dtype(const char* what, at::ScalarType type) {
  const std::optional<DType> known = dtype_of(type);
  const bool fits =
      known && (kind_of(*known) == DTypeKind::kInteger || kind_of(*known) == DTypeKind::kBool);
  TORCH_CHECK_TYPE(fits, what, " is ", text_of(type), ", allowed: integers, bool");
  return *known;
}

void check_place(const char* what, const at::Tensor& tensor) {
  check_tensor(what, tensor);
  TORCH_CHECK_VALUE(tensor.is_cpu(), what, " is on device ", tensor.device(), ", allowed: cpu");
}

int checked_bits(int64_t bits) {
  TORCH_CHECK_VALUE(bits >= 1 && bits <= 64, "bits is ", bits, ", allowed: 1 to 64");
  return static_cast<int>(bits);
}

}  // namespace

at::Tensor pack_integers(const at::Tensor& tensor, int64_t low, int64_t bits) {
  const at::AutoDispatchBelowADInplaceOrView autograd;
  const SafeAfterFork one_thread;
  check_place("tensor", tensor);
  const DType dtype = integer_dtype("tensor.dtype", tensor.scalar_type());
  const int width = checked_bits(bits);
  const at::Tensor x = readable(tensor);
  const at::Tensor codes = at::empty({static_cast<int64_t>(packed_bytes(count_of(x), width))},
                                     x.options().dtype(at::kByte));
  pack_integers(x.const_data_ptr(), dtype, count_of(x), low, width, bytes_of_host(codes));
  return codes;
}

at::Tensor unpack_integers(const at::Tensor& given, int64_t low, int64_t bits, int64_t numel,
                           at::ScalarType type) {
  const at::AutoDispatchBelowADInplaceOrView autograd;
  const SafeAfterFork one_thread;
  check_place("codes", given);
  check_payload("codes", given);
  const DType dtype = integer_dtype("dtype", type);
  const int width = checked_bits(bits);
  TORCH_CHECK_VALUE(numel >= 0, "numel is ", numel, ", allowed: 0 or more");
  const size_t bytes = packed_bytes(static_cast<size_t>(numel), width);
  TORCH_CHECK_VALUE(count_of(given) == bytes, "codes has ", given.numel(), " bytes, allowed for ",
                    numel, " values of ", bits, " bits: ", bytes);
  const at::Tensor codes = readable(given);
  at::Tensor y = at::empty({numel}, codes.options().dtype(type));
  unpack_integers(bytes_of_host(codes), dtype, static_cast<size_t>(numel), low, width,
                  y.mutable_data_ptr());
  return y;
}

}  // namespace cgx
