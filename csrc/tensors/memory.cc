#include "tensors/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "base/dtype_set.h"
#include "tensors/dtypes.h"

namespace cgx {
namespace {

bool has_strides(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested();
}

// True if two elements may have the same address. Exact for all views, except for views of
// torch.as_strided whose elements interleave: these may give true although no address is shared.
bool elements_share_memory(const at::Tensor& tensor) {
  if (tensor.numel() < 2 || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t farthest = 0;  // element that the smaller dimensions reach
  for (const auto& [stride, size] : dimensions) {
    if (stride <= farthest) return true;
    farthest += (size - 1) * stride;
  }
  return false;
}

// The storage is as long as the values need; `head` and `what` begin the error.
void check_bytes(const char* head, const char* what, const at::Tensor& tensor) {
  if (!has_strides(tensor) || !tensor.has_storage() || tensor._is_zerotensor()) return;
  if (tensor.numel() == 0 || tensor.is_meta()) return;
  const size_t held = tensor.storage().nbytes();
  const size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       static_cast<size_t>(tensor.storage_offset()));
  TORCH_CHECK_VALUE(needed <= held, head, what, " of shape ", tensor.sizes(),
                    " has values up to byte ", needed, " of its storage, which was resized to ",
                    held, " bytes, as FSDP does to free parameters");
}

}  // namespace

at::Tensor readable(const at::Tensor& tensor) {
  if (!has_strides(tensor)) return tensor;
  check_bytes("cgx: ", "a tensor", tensor);
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor writable(const at::Tensor& tensor) {
  if (!has_strides(tensor) || tensor.is_contiguous()) return tensor;
  return at::empty(tensor.sizes(), tensor.options());
}

std::vector<at::Tensor> readable(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> plain;
  for (const at::Tensor& tensor : tensors) plain.push_back(readable(tensor));
  return plain;
}

std::vector<std::vector<at::Tensor>> readable(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<std::vector<at::Tensor>> plain;
  for (const std::vector<at::Tensor>& list : lists) plain.push_back(readable(list));
  return plain;
}

void check_writable(const char* what, const at::Tensor& tensor, bool lazy) {
  if (!has_strides(tensor)) return;
  TORCH_CHECK_VALUE(!tensor._is_zerotensor(), "cgx: ", what, " into a ", tensor.scalar_type(),
                    " tensor of shape ", tensor.sizes(),
                    " that has no memory (torch's lazy zeros); use torch.zeros");
  TORCH_CHECK_VALUE(!elements_share_memory(tensor), "cgx: ", what, " into a tensor of shape ",
                    tensor.sizes(), " and strides ", tensor.strides(),
                    " whose elements share memory (an expanded tensor); clone() it");
  check_bytes("cgx: an output of ", what, tensor);
  TORCH_CHECK_VALUE(!lazy || !(tensor.is_neg() || tensor.is_conj()), "cgx: ", what,
                    " into a lazily ", tensor.is_neg() ? "negated" : "conjugated",
                    " view of shape ", tensor.sizes(), "; use its resolve_neg() or resolve_conj()");
}

void check_writable(const char* what, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) check_writable(what, tensor);
}

void check_writable(const char* what, const std::vector<std::vector<at::Tensor>>& lists) {
  for (const std::vector<at::Tensor>& list : lists) check_writable(what, list);
}

void check_storage(const char* what, const at::Tensor& tensor) { check_bytes("", what, tensor); }

std::byte* host_bytes(const char* what, const at::Tensor& tensor, size_t each, size_t first,
                      size_t values) {
  const bool plain = has_strides(tensor) && tensor.is_cpu() && tensor.is_contiguous() &&
                     !tensor.is_neg() && !tensor.is_conj() && !tensor._is_zerotensor();
  TORCH_CHECK_VALUE(plain, what, " is no contiguous tensor on the CPU, which is needed here");
  check_storage(what, tensor);
  TORCH_CHECK_VALUE(static_cast<size_t>(tensor.itemsize()) == each, what, " has values of ",
                    tensor.itemsize(), " bytes, allowed: ", each);
  const auto numel = static_cast<size_t>(tensor.numel());
  TORCH_CHECK_VALUE(first <= numel && values <= numel - first, what, " has ", numel,
                    " values, and value ", first, " and the ", values, " from there are wanted");
  auto* start = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
  TORCH_CHECK_VALUE(start != nullptr || numel == 0, what, " has no memory, as a FakeTensor");
  return numel == 0 ? start : start + first * each;
}

std::optional<DType> codec_type(at::ScalarType type) {
  const std::optional<DType> known = dtype_of(type);
  return known && kComputed.has(*known) ? known : std::nullopt;
}

std::optional<DType> engine_dtype(const at::Tensor& tensor) {
  const bool device = tensor.device().is_cpu() || tensor.is_cuda();
  if (!device || tensor.layout() != at::kStrided) return std::nullopt;
  return codec_type(tensor.scalar_type());
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  const auto* first = static_cast<const char*>(a.const_data_ptr());
  const auto* second = static_cast<const char*>(b.const_data_ptr());
  return first < second + b.nbytes() && second < first + a.nbytes();
}

}  // namespace cgx
