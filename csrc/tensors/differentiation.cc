#include "tensors/differentiation.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace cgx {
namespace {

bool has_tangent(const at::Tensor& tensor) {
  return c10::AutogradState::get_tls_state().get_fw_grad_mode() && tensor._fw_grad(0).defined();
}

// A node that raises in the backward pass. Held: how this version of torch holds nodes.
template <typename Held, typename... Arguments>
Held make_node(Arguments&&... arguments) {
  using torch::autograd::Error;
  if constexpr (std::is_same_v<Held, std::shared_ptr<typename Held::element_type>>) {
    return std::make_shared<Error>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Error>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace

bool tracks(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

void refuse_tangent(const char* operation, const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(!tensor.is_nested(), what, " is nested, allowed: a tensor with one shape");
  TORCH_CHECK(!has_tangent(tensor), operation, " has no forward-mode derivative, and ", what,
              " has a tangent: pass its primal");
}

void refuse(const char* operation, const char* what, const at::Tensor& tensor) {
  refuse_tangent(operation, what, tensor);
  TORCH_CHECK(!tracks(tensor), operation, " is not differentiable, and ", what,
              " requires a gradient: pass ", what, ".detach(), or call it under torch.no_grad()");
}

void raise_in_backward(const at::Tensor& result, const at::Tensor& tensor, const char* text) {
  const auto raises = make_node<decltype(torch::autograd::Edge::function)>(
      text, torch::autograd::collect_next_edges(tensor));
  torch::autograd::set_history(result, raises);
}

}  // namespace cgx
