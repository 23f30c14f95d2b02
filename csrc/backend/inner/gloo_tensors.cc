#include "backend/inner/gloo_tensors.h"

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>

namespace cgx {
namespace {

bool gloo_moves(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool needs_bytes(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_sparse() && !gloo_moves(tensor.scalar_type());
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "cgx: a tensor of type ", tensor.scalar_type(),
              " must be contiguous to be moved");
  at::Tensor flat = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  // A view of one value or none may have any stride.
  return flat.as_strided({flat.numel()}, {1}).view(at::kByte);
}

Tensors as_bytes(const Tensors& tensors) {
  Tensors views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(as_bytes(tensor));
  return views;
}

std::vector<Tensors> as_bytes(const std::vector<Tensors>& lists) {
  std::vector<Tensors> views;
  views.reserve(lists.size());
  for (const Tensors& list : lists) views.push_back(as_bytes(list));
  return views;
}

const at::Tensor& first_of(const Tensors& tensors) {
  TORCH_CHECK(!tensors.empty(), "cgx: the list of tensors is empty");
  return tensors.front();
}

const at::Tensor& single(const char* what, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "cgx: ", what, " takes one tensor per rank, got ",
                    tensors.size());
  return tensors.front();
}

Tensors flatten(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

at::Tensor with_dimension(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? tensor.view({1}) : tensor;
}

void check_list(const char* what, const char* list, size_t length, size_t expected) {
  TORCH_CHECK_VALUE(length == expected, "cgx: ", what, ": the list of ", list, " has ", length,
                    " tensors; expected ", expected, ", one per rank");
}

void check_lists(const char* what, const char* list, const std::vector<Tensors>& lists, int rank,
                 int64_t root, int size) {
  if (rank != root) {
    TORCH_CHECK_VALUE(lists.empty() || lists.front().empty(), "cgx: ", what, ": rank ", rank,
                      " gives ", list, ", which only the root, rank ", root, ", may");
    return;
  }
  TORCH_CHECK_VALUE(lists.size() == 1, "cgx: ", what, ": expected one list of ", list);
  check_list(what, list, lists.front().size(), static_cast<size_t>(size));
}

void check_alike(const char* what, const Tensors& tensors, const at::Tensor& like) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel(),
                      "cgx: ", what, " of a tensor of ", like.numel(), " ", like.scalar_type(),
                      " with one of ", tensor.numel(), " ", tensor.scalar_type(),
                      " in the list; they must be alike");
  }
}

void check_same_type(const char* what, const Tensors& tensors, const at::Tensor& like) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type() &&
                          tensor.device().type() == like.device().type(),
                      "cgx: ", what, " of ", like.scalar_type(), " tensors on ", like.device(),
                      " with a ", tensor.scalar_type(), " tensor on ", tensor.device(),
                      "; they must be alike");
  }
}

void check_root(const char* what, int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "cgx: ", what, ": root rank ", root,
                    " is not in the group; allowed: 0 to ", size - 1);
}

void check_reducible(const char* what, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_TYPE(!needs_bytes(tensor) || tensor.is_complex(), "cgx: ", what,
                     " of a tensor of type ", tensor.scalar_type(),
                     " is not supported; float32, float16, bfloat16, float64, int8, uint8, int32, ",
                     "int64 and bool are (convert it first)");
  }
}

}  // namespace cgx
