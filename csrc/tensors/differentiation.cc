#include "tensors/differentiation.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

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

// An inference tensor has no version, so only InferenceMode may write to it. torch's own operators check
// the same.
void may_change(const at::Tensor& out) {
  TORCH_CHECK(
      !out.is_inference() || c10::InferenceMode::is_enabled(),
      "Inplace update to inference tensor outside InferenceMode is not allowed. You can make "
      "a clone to get a normal tensor before doing inplace update.");
}

void has_changed(const at::Tensor& out) {
  if (!out.is_inference()) out.unsafeGetTensorImpl()->bump_version();
}

void refuse_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const char* const name = op.schema().name().c_str() + (sizeof "torch_cgx::" - 1);
  const auto& arguments = op.schema().arguments();
  const auto given = torch::jit::last(*stack, arguments.size());
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].isTensor()) continue;
    refuse(name, arguments[i].name().c_str(), given[i].toTensor());
  }
  const at::AutoDispatchBelowAutograd below;
  op.callBoxed(stack);
}

void count_versions_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet,
                          torch::jit::Stack* stack) {
  std::vector<at::Tensor> written;
  const auto& arguments = op.schema().arguments();
  const auto given = torch::jit::last(*stack, arguments.size());
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    written.push_back(given[i].toTensor());
    may_change(written.back());
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  for (const at::Tensor& out : written) has_changed(out);
}

}  // namespace cgx
