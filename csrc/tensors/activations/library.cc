// The operators for activations: schemas, kernels, and what autograd does with them, as tensors/library.cc
// and tensors/autograd.cc have those of codecs. torch_cgx/activations/_operators.py has their sizes for
// tensors without values.
#include <torch/library.h>

#include <array>
#include <tuple>

#include "tensors/activations/dropout.h"
#include "tensors/activations/integers.h"
#include "tensors/activations/levels.h"
#include "tensors/activations/norms.h"
#include "tensors/differentiation.h"
#include "tensors/for_torch.h"

namespace cgx {
namespace {

using Numbers = at::ArrayRef<double>;

at::Tensor encode_kernel(const at::Tensor& tensor, Numbers borders, int64_t levels, bool magnitude,
                         bool mark_nans) {
  return for_torch([&] { return level_encode(tensor, borders, levels, magnitude, mark_nans); });
}

at::Tensor multiply_kernel(const at::Tensor& grad, const at::Tensor& codes, Numbers levels) {
  return for_torch([&] { return level_multiply(grad, codes, levels); });
}

at::Tensor decode_kernel(const at::Tensor& codes, Numbers levels, int64_t numel,
                         at::ScalarType dtype) {
  return for_torch([&] { return level_decode(codes, levels, numel, dtype); });
}

at::Tensor two_kernel(const at::Tensor& tensor, double low, double high) {
  return for_torch([&] { return pack_two_values(tensor, low, high); });
}

at::Tensor pack_kernel(const at::Tensor& tensor, int64_t low, int64_t bits) {
  return for_torch([&] { return pack_integers(tensor, low, bits); });
}

at::Tensor unpack_kernel(const at::Tensor& codes, int64_t low, int64_t bits, int64_t numel,
                         at::ScalarType dtype) {
  return for_torch([&] { return unpack_integers(codes, low, bits, numel, dtype); });
}

at::Tensor dropout_kernel(const at::Tensor& tensor, double p, int64_t key) {
  return for_torch([&] { return dropout(tensor, p, key); });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_kernel(
    const at::Tensor& grad, const at::Tensor& output, const at::Tensor& rstd,
    const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& inverse, bool centred,
    std::array<bool, 3> wanted) {
  return for_torch(
      [&] { return norm_backward(grad, output, rstd, weight, bias, inverse, centred, wanted); });
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> found(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

at::Tensor multiply_autograd(const at::Tensor& grad, const at::Tensor& codes, Numbers levels) {
  refuse_tangent("level_multiply", "grad", grad);
  static const auto op = found<decltype(multiply_kernel)>("torch_cgx::level_multiply");
  at::Tensor result;
  {
    const at::AutoDispatchBelowAutograd below;
    result = op.call(grad, codes, levels);
  }
  if (tracks(grad)) {
    raise_in_backward(
        result, grad,
        "a few-bit function has no second derivative, since it keeps codes of the "
        "first one only: use torch's own function where a gradient is differentiated");
  }
  return result;
}

void implement(torch::Library& library) {
  library.impl("level_encode", TORCH_FN(encode_kernel));
  library.impl("level_multiply", TORCH_FN(multiply_kernel));
  library.impl("level_decode", TORCH_FN(decode_kernel));
  library.impl("pack_two_values", TORCH_FN(two_kernel));
  library.impl("pack_integers", TORCH_FN(pack_kernel));
  library.impl("unpack_integers", TORCH_FN(unpack_kernel));
  library.impl("dropout", TORCH_FN(dropout_kernel));
  library.impl("norm_backward", TORCH_FN(norm_kernel));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cgx, library) {
  library.set_python_module("torch_cgx.activations._operators");
  library.def(
      "level_encode(Tensor tensor, float[] borders, int levels, *, bool magnitude=False, "
      "bool mark_nans=False) -> Tensor");
  library.def("level_multiply(Tensor grad, Tensor codes, float[] levels) -> Tensor");
  library.def(
      "level_decode(Tensor codes, float[] levels, SymInt numel, *, ScalarType dtype) -> Tensor");
  library.def("pack_two_values(Tensor tensor, float low, float high) -> Tensor");
  library.def("pack_integers(Tensor tensor, int low, int bits) -> Tensor");
  library.def(
      "unpack_integers(Tensor codes, int low, int bits, SymInt numel, *, ScalarType dtype) -> "
      "Tensor");
  library.def("dropout(Tensor tensor, float p, int key) -> Tensor");
  library.def(
      "norm_backward(Tensor grad, Tensor output, Tensor rstd, Tensor weight, Tensor bias, "
      "Tensor inverse, bool centred, bool[3] wanted) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(torch_cgx, CPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, CUDA, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, CompositeExplicitAutograd, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCUDA, library) { implement(library); }

TORCH_LIBRARY_IMPL(torch_cgx, Autograd, library) {
  library.impl("level_multiply", TORCH_FN(multiply_autograd));
  for (const char* name : {"level_encode", "level_decode", "pack_two_values", "pack_integers",
                           "unpack_integers", "dropout", "norm_backward"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_boxed>());
  }
}

}  // namespace cgx
