// What autograd does with the operators: none of them has a derivative, and nothing is detached without
// a word, in reverse or in forward mode. Encoding a tensor that requires a gradient is an error, as the
// payload's bytes cannot carry the gradient on; the result of roundtrip() raises in the backward pass;
// and a tensor that is written must not require a gradient.
#include <torch/library.h>

#include <string_view>

#include "tensors/differentiation.h"
#include "tensors/operators.h"

namespace cgx {
namespace {

using c10::SymInt;
using Type = std::optional<at::ScalarType>;
using View = std::string_view;

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
  refuse("decode", "payload", payload);
  const at::AutoDispatchBelowAutograd below;
  return operators::decode(payload, codec, numel, dtype);
}

void decode_out_autograd(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  refuse("decode", "payload", payload);
  refuse("decode", "out", out);
  const at::AutoDispatchBelowAutograd below;
  operators::decode_out(payload, codec, dtype, out);
}

void decode_add_autograd(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  refuse("decode", "payload", payload);
  refuse("decode", "out", out);
  const at::AutoDispatchBelowAutograd below;
  operators::decode_add(payload, codec, dtype, out);
}

at::Tensor roundtrip_autograd(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                              SymInt rank, SymInt index) {
  refuse_tangent("roundtrip", "tensor", tensor);
  at::Tensor result;
  {
    const at::AutoDispatchBelowAutograd below;
    result = operators::roundtrip(tensor, codec, {step, number, rank, index});
  }
  if (tracks(tensor)) {
    raise_in_backward(result, tensor,
                      "roundtrip is not differentiable: use its result under torch.no_grad(), or "
                      "add (roundtrip(x) - x).detach() to x, which passes gradients on unchanged");
  }
  return result;
}

void roundtrip_out_autograd(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                            SymInt rank, SymInt index, const at::Tensor& out) {
  refuse("roundtrip to out", "tensor", tensor);
  refuse("roundtrip", "out", out);
  const at::AutoDispatchBelowAutograd below;
  operators::roundtrip_out(tensor, codec, {step, number, rank, index}, out);
}

void encode_out_inplace(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                        SymInt rank, SymInt index, const at::Tensor& out) {
  may_change(out);
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    operators::encode_out(tensor, codec, {step, number, rank, index}, out);
  }
  has_changed(out);
}

void decode_out_inplace(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  may_change(out);
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    operators::decode_out(payload, codec, dtype, out);
  }
  has_changed(out);
}

void decode_add_inplace(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  may_change(out);
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    operators::decode_add(payload, codec, dtype, out);
  }
  has_changed(out);
}

void roundtrip_out_inplace(const at::Tensor& tensor, View codec, SymInt step, SymInt number,
                           SymInt rank, SymInt index, const at::Tensor& out) {
  may_change(out);
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
  for (const char* stage : {"bounded_look", "bounded_encode", "bounded_decode",
                            "cuda_float_compress_encode", "cuda_float_compress_decode"}) {
    library.impl(stage, torch::CppFunction::makeFromBoxedFunction<&refuse_boxed>());
  }
}

TORCH_LIBRARY_IMPL(torch_cgx, ADInplaceOrView, library) {
  library.impl("encode.out", TORCH_FN(encode_out_inplace));
  library.impl("decode.out", TORCH_FN(decode_out_inplace));
  library.impl("decode_add", TORCH_FN(decode_add_inplace));
  library.impl("roundtrip.out", TORCH_FN(roundtrip_out_inplace));
  for (const char* stage :
       {"bounded_decode", "cuda_float_compress_encode", "cuda_float_compress_decode"}) {
    library.impl(stage, torch::CppFunction::makeFromBoxedFunction<&count_versions_boxed>());
  }
}

// The kernels handle lazily negated tensors. torch's fallback, which writes a copy and negates it back,
// works only for operators that return what they write.
TORCH_LIBRARY_IMPL(torch_cgx, Negative, library) {
  for (const char* name :
       {"encode.out", "decode.out", "decode_add", "roundtrip.out", "bounded_decode",
        "cuda_float_compress_encode", "cuda_float_compress_decode"}) {
    library.impl(name, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace cgx
