#include "tensors/results.h"

#include <ATen/Functions.h>

namespace cgx {

at::Tensor dense_values(const at::Tensor& tensor) {
  if (tensor.is_neg() || tensor._is_zerotensor()) {
    return at::empty(tensor.sizes(), tensor.options()).copy_(tensor);
  }
  return tensor.contiguous();
}

bool can_write(const at::Tensor& out) {
  return out.is_contiguous() && !out.is_neg() && !out._is_zerotensor();
}

bool overlaps(const at::Tensor& out, const at::Tensor& other) {
  const auto begin = [](const at::Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.storage().data());
  };
  const auto end = [&](const at::Tensor& t) { return begin(t) + t.storage().nbytes(); };
  return out.nbytes() > 0 && begin(out) < end(other) && begin(other) < end(out);
}

bool can_take(const at::Tensor& out, const at::Tensor& payload) {
  return can_write(out) && !overlaps(out, payload);
}

Result::Result(const at::Tensor& out, bool direct)
    : out_(out), memory_(direct ? out : at::empty(out.sizes(), out.options())) {}

void Result::fetch() const {
  if (!memory_.is_same(out_)) const_cast<at::Tensor&>(memory_).copy_(out_);
}

void Result::deliver() const {
  if (!memory_.is_same(out_)) const_cast<at::Tensor&>(out_).copy_(memory_);
}

}  // namespace cgx
