#include "tensors/checks.h"

#include "base/error.h"
#include "tensors/memory.h"

namespace cgx {

std::string text_of(at::ScalarType type) {
  return "torch." + std::string(c10::getDtypeNames(type).first);
}

std::string text_of(at::Layout layout) {
  switch (layout) {
    case at::kSparse:
      return "torch.sparse_coo";
    case at::kSparseCsr:
      return "torch.sparse_csr";
    case at::kSparseCsc:
      return "torch.sparse_csc";
    case at::kSparseBsr:
      return "torch.sparse_bsr";
    case at::kSparseBsc:
      return "torch.sparse_bsc";
    default:
      return str_of(layout);
  }
}

void check_tensor(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(!tensor.is_nested(), what, " is nested, allowed: a tensor with one shape");
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, what, " has the layout ",
                   text_of(tensor.layout()), ", allowed: torch.strided");
  TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.is_cuda(), what, " is on device ", tensor.device(),
                    ", allowed: cpu, cuda");
  check_storage(what, tensor);
}

void check_payload(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kByte && tensor.dim() == 1, what, " is ",
                   text_of(tensor.scalar_type()), " with ", tensor.dim(),
                   " dimensions, allowed: uint8 with 1 dimension");
}

void check_device(const char* what, const at::Tensor& tensor, const char* other_what,
                  const at::Tensor& other) {
  TORCH_CHECK_VALUE(tensor.device() == other.device(), what, " is on device ", tensor.device(),
                    ", allowed: ", other.device(), ", where ", other_what, " is");
}

DType codec_dtype(const char* what, at::ScalarType type) {
  if (const auto known = codec_type(type)) return *known;
  TORCH_CHECK_TYPE(false, what, " is ", text_of(type), ", allowed: float32, float16, bfloat16");
}

}  // namespace cgx
