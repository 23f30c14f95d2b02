// The operators of emulation: schemas, kernels, and what autograd does with them, as tensors/library.cc and
// tensors/autograd.cc have those of codecs. torch_cgx/emulate/_operators.py has them for tensors without
// values.
#include <c10/core/SymInt.h>
#include <torch/library.h>

#include <tuple>
#include <utility>

#include "tensors/differentiation.h"
#include "tensors/emulation/casts.h"
#include "tensors/for_torch.h"

namespace cgx {
namespace {

using c10::SymInt;
using View = std::string_view;

CastKey key_of(int64_t seed, int64_t step, int64_t number) {
  return {static_cast<uint64_t>(seed), static_cast<uint64_t>(step), static_cast<uint64_t>(number)};
}

at::Tensor cast_kernel(const at::Tensor& tensor, View format, int64_t seed, int64_t step,
                       int64_t number) {
  return for_torch([&] {
    return cast_tensor(*cast_of_text(format), tensor, key_of(seed, step, number), nullptr);
  });
}

void cast_out_kernel(const at::Tensor& tensor, View format, int64_t seed, int64_t step,
                     int64_t number, const at::Tensor& out) {
  for_torch([&] {
    cast_tensor_out(*cast_of_text(format), tensor, key_of(seed, step, number), out, nullptr);
  });
}

std::tuple<at::Tensor, at::Tensor> statistics_kernel(const at::Tensor& tensor, View format,
                                                     int64_t seed, int64_t step, int64_t number) {
  return for_torch([&] {
    at::Tensor statistics;
    at::Tensor y =
        cast_tensor(*cast_of_text(format), tensor, key_of(seed, step, number), &statistics);
    return std::make_tuple(y, statistics);
  });
}

at::Tensor statistics_out_kernel(const at::Tensor& tensor, View format, int64_t seed, int64_t step,
                                 int64_t number, const at::Tensor& out) {
  return for_torch([&] {
    at::Tensor statistics;
    cast_tensor_out(*cast_of_text(format), tensor, key_of(seed, step, number), out, &statistics);
    return statistics;
  });
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> found(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

constexpr const char* kNoDerivative =
    "a cast is not differentiable: use torch_cgx.emulate.cast_ste, which passes gradients on "
    "unchanged, or cast under torch.no_grad()";

at::Tensor cast_autograd(const at::Tensor& tensor, View format, SymInt seed, SymInt step,
                         SymInt number) {
  refuse_tangent("cast", "tensor", tensor);
  static const auto op = found<decltype(cast_autograd)>("torch_cgx::cast");
  at::Tensor result;
  {
    const at::AutoDispatchBelowAutograd below;
    result = op.call(tensor, format, std::move(seed), std::move(step), std::move(number));
  }
  if (tracks(tensor)) raise_in_backward(result, tensor, kNoDerivative);
  return result;
}

std::tuple<at::Tensor, at::Tensor> statistics_autograd(const at::Tensor& tensor, View format,
                                                       SymInt seed, SymInt step, SymInt number) {
  refuse_tangent("cast", "tensor", tensor);
  static const auto op = found<decltype(statistics_autograd)>("torch_cgx::cast_statistics");
  std::tuple<at::Tensor, at::Tensor> result;
  {
    const at::AutoDispatchBelowAutograd below;
    result = op.call(tensor, format, std::move(seed), std::move(step), std::move(number));
  }
  if (tracks(tensor)) raise_in_backward(std::get<0>(result), tensor, kNoDerivative);
  return result;
}

void implement(torch::Library& library) {
  library.impl("cast", TORCH_FN(cast_kernel));
  library.impl("cast.out", TORCH_FN(cast_out_kernel));
  library.impl("cast_statistics", TORCH_FN(statistics_kernel));
  library.impl("cast_statistics.out", TORCH_FN(statistics_out_kernel));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cgx, library) {
  library.set_python_module("torch_cgx.emulate._operators");
  const std::string key = "str format, SymInt seed=0, SymInt step=0, SymInt number=0";
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  define("cast(Tensor tensor, " + key + ") -> Tensor");
  define("cast.out(Tensor tensor, " + key + ", *, Tensor(a!) out) -> ()");
  define("cast_statistics(Tensor tensor, " + key + ") -> (Tensor, Tensor)");
  define("cast_statistics.out(Tensor tensor, " + key + ", *, Tensor(a!) out) -> Tensor");
}

TORCH_LIBRARY_IMPL(torch_cgx, CPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, CUDA, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, CompositeExplicitAutograd, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCUDA, library) { implement(library); }

TORCH_LIBRARY_IMPL(torch_cgx, Autograd, library) {
  library.impl("cast", TORCH_FN(cast_autograd));
  library.impl("cast_statistics", TORCH_FN(statistics_autograd));
  for (const char* name : {"cast.out", "cast_statistics.out"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_boxed>());
  }
}

TORCH_LIBRARY_IMPL(torch_cgx, ADInplaceOrView, library) {
  for (const char* name : {"cast.out", "cast_statistics.out"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&count_versions_boxed>());
  }
}

TORCH_LIBRARY_IMPL(torch_cgx, Negative, library) {
  for (const char* name : {"cast.out", "cast_statistics.out"}) {
    library.impl(name, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace cgx
