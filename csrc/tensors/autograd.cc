// What autograd does with the operators: none of them has a derivative, and nothing is detached without
// a word. Encoding a tensor that requires a gradient is an error, as the payload's bytes cannot carry
// the gradient on; the result of roundtrip() raises in the backward pass; and a tensor that is
// written must not require a gradient.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tensors/operators.h"

namespace cgx {
namespace {

using c10::SymInt;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Type = std::optional<at::ScalarType>;
using View = std::string_view;

bool tracks(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

void refuse(const char* operation, const char* what, const at::Tensor& tensor) {
  TORCH_CHECK(!tracks(tensor), operation, " is not differentiable, and ", what,
              " requires a gradient: pass ", what, ".detach(), or call it under torch.no_grad()");
}

at::Tensor encode_autograd(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                           SymInt rank, SymInt index) {
  refuse("encode", "tensor", tensor);
  const at::AutoDispatchBelowAutograd below;
  return operators::encode(tensor, codec, {step, number, rank, index});
}

void encode_out_autograd(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                         SymInt rank, SymInt index, const at::Tensor& out) {
  refuse("encode", "tensor", tensor);
  const at::AutoDispatchBelowAutograd below;
  operators::encode_out(tensor, codec, {step, number, rank, index}, out);
}

at::Tensor decode_autograd(const at::Tensor& payload, View codec, SymInt numel,
                           at::ScalarType dtype) {
  const at::AutoDispatchBelowAutograd below;
  return operators::decode(payload, codec, numel, dtype);
}

void decode_out_autograd(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  refuse("decode", "out", out);
  const at::AutoDispatchBelowAutograd below;
  operators::decode_out(payload, codec, dtype, out);
}

void decode_add_autograd(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  refuse("decode", "out", out);
  const at::AutoDispatchBelowAutograd below;
  operators::decode_add(payload, codec, dtype, out);
}

struct Roundtrip : torch::autograd::Function<Roundtrip> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& tensor, View codec, SymInt step,
                            SymInt number, SymInt rank, SymInt index) {
    const at::AutoDispatchBelowAutograd below;
    return operators::roundtrip(tensor, codec, {step, number, rank, index});
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK(false,
                "roundtrip is not differentiable: use its result under torch.no_grad(), or add "
                "(roundtrip(x) - x).detach() to x, which passes gradients on unchanged");
  }
};

at::Tensor roundtrip_autograd(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                              SymInt rank, SymInt index) {
  if (tracks(tensor)) return Roundtrip::apply(tensor, codec, step, number, rank, index);
  const at::AutoDispatchBelowAutograd below;
  return operators::roundtrip(tensor, codec, {step, number, rank, index});
}

void roundtrip_out_autograd(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                            SymInt rank, SymInt index, const at::Tensor& out) {
  refuse("roundtrip to out", "tensor", tensor);
  refuse("roundtrip", "out", out);
  const at::AutoDispatchBelowAutograd below;
  operators::roundtrip_out(tensor, codec, {step, number, rank, index}, out);
}

// As torch's own operators: an inference tensor has no version.
void has_changed(const at::Tensor& out) {
  if (!out.is_inference()) out.unsafeGetTensorImpl()->bump_version();
}

void encode_out_inplace(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                        SymInt rank, SymInt index, const at::Tensor& out) {
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    operators::encode_out(tensor, codec, {step, number, rank, index}, out);
  }
  has_changed(out);
}

void decode_out_inplace(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    operators::decode_out(payload, codec, dtype, out);
  }
  has_changed(out);
}

void decode_add_inplace(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    operators::decode_add(payload, codec, dtype, out);
  }
  has_changed(out);
}

void roundtrip_out_inplace(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                           SymInt rank, SymInt index, const at::Tensor& out) {
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    operators::roundtrip_out(tensor, codec, {step, number, rank, index}, out);
  }
  has_changed(out);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cgx, Autograd, library) {
  library.impl("encode", TORCH_FN(encode_autograd));
  library.impl("encode.out", TORCH_FN(encode_out_autograd));
  library.impl("decode", TORCH_FN(decode_autograd));
  library.impl("decode.out", TORCH_FN(decode_out_autograd));
  library.impl("decode_add", TORCH_FN(decode_add_autograd));
  library.impl("roundtrip", TORCH_FN(roundtrip_autograd));
  library.impl("roundtrip.out", TORCH_FN(roundtrip_out_autograd));
}

TORCH_LIBRARY_IMPL(torch_cgx, ADInplaceOrView, library) {
  library.impl("encode.out", TORCH_FN(encode_out_inplace));
  library.impl("decode.out", TORCH_FN(decode_out_inplace));
  library.impl("decode_add", TORCH_FN(decode_add_inplace));
  library.impl("roundtrip.out", TORCH_FN(roundtrip_out_inplace));
}

}  // namespace cgx
