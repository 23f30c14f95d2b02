// The operator of matrix products in formats: its schema, its kernel for the CPU, and what autograd does
// with it. torch_cgx/emulate/gemm has it for tensors without values, and for GPUs.
#include <c10/core/SymInt.h>
#include <torch/library.h>

#include <utility>

#include "tensors/differentiation.h"
#include "tensors/emulation/product.h"
#include "tensors/for_torch.h"

namespace cgx {
namespace {

at::Tensor product_kernel(const at::Tensor& a, const at::Tensor& b, std::string_view accumulate,
                          bool kahan, int64_t block) {
  return for_torch([&] { return product_tensor(a, b, accumulate, kahan, block); });
}

at::Tensor product_autograd(const at::Tensor& a, const at::Tensor& b, std::string_view accumulate,
                            bool kahan, int64_t block) {
  refuse_tangent("emulate_product", "a", a);
  refuse_tangent("emulate_product", "b", b);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torch_cgx::emulate_product", "")
                             .typed<decltype(product_autograd)>();
  at::Tensor result;
  {
    const at::AutoDispatchBelowAutograd below;
    result = op.call(a, b, accumulate, kahan, block);
  }
  if (tracks(a) || tracks(b)) {
    raise_in_backward(result, tracks(a) ? a : b,
                      "a product in a format is not differentiable: use torch_cgx.emulate.matmul, "
                      "which has a gradient, or multiply under torch.no_grad()");
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cgx, library) {
  library.set_python_module("torch_cgx.emulate.gemm._operators");
  library.def(
      "emulate_product(Tensor a, Tensor b, str accumulate, bool kahan=False, int block=0) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(torch_cgx, CPU, library) {
  library.impl("emulate_product", TORCH_FN(product_kernel));
}
TORCH_LIBRARY_IMPL(torch_cgx, CompositeExplicitAutograd, library) {
  library.impl("emulate_product", TORCH_FN(product_kernel));
}
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCPU, library) {
  library.impl("emulate_product", TORCH_FN(product_kernel));
}
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCUDA, library) {
  library.impl("emulate_product", TORCH_FN(product_kernel));
}
TORCH_LIBRARY_IMPL(torch_cgx, Autograd, library) {
  library.impl("emulate_product", TORCH_FN(product_autograd));
}

}  // namespace cgx
