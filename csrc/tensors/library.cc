// The operators of torch_cgx: their schemas, and their kernels for tensors with values.
//
// Codecs are named by their canonical text (codec_text.h). `step`, `number`, `rank` and `index` are the
// key of random numbers (codec/ops/random.h, local_key). Sizes of results are functions of the arguments'
// sizes; torch_cgx/_operators.py has them for tensors without values. Kernels are registered for all
// devices and layouts, so that a tensor that no operator takes meets an error that says so.
#include <torch/library.h>

#include <string>

#include "tensors/codec_text.h"
#include "tensors/codecs.h"
#include "tensors/for_torch.h"

namespace cgx {
namespace {

using Type = std::optional<at::ScalarType>;
using View = std::string_view;

ElementKey key_of(int64_t step, int64_t number, int64_t rank, int64_t index) {
  return {static_cast<uint64_t>(step), static_cast<uint64_t>(number), rank,
          static_cast<uint64_t>(index)};
}

at::Tensor encode_kernel(const at::Tensor& tensor, View codec, int64_t step, int64_t number,
                         int64_t rank, int64_t index) {
  return for_torch(
      [&] { return encode(*codec_of_text(codec), tensor, key_of(step, number, rank, index)); });
}

void encode_out_kernel(const at::Tensor& tensor, View codec, int64_t step, int64_t number,
                       int64_t rank, int64_t index, const at::Tensor& out) {
  for_torch(
      [&] { encode_out(*codec_of_text(codec), tensor, key_of(step, number, rank, index), out); });
}

at::Tensor decode_kernel(const at::Tensor& payload, View codec, int64_t numel,
                         at::ScalarType dtype) {
  return for_torch([&] { return decode(*codec_of_text(codec), payload, numel, dtype); });
}

void decode_out_kernel(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  for_torch([&] { decode_out(*codec_of_text(codec), payload, dtype, false, out); });
}

void decode_add_kernel(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  for_torch([&] { decode_out(*codec_of_text(codec), payload, dtype, true, out); });
}

at::Tensor roundtrip_kernel(const at::Tensor& tensor, View codec, int64_t step, int64_t number,
                            int64_t rank, int64_t index) {
  return for_torch(
      [&] { return roundtrip(*codec_of_text(codec), tensor, key_of(step, number, rank, index)); });
}

void roundtrip_out_kernel(const at::Tensor& tensor, View codec, int64_t step, int64_t number,
                          int64_t rank, int64_t index, const at::Tensor& out) {
  for_torch([&] {
    roundtrip_out(*codec_of_text(codec), tensor, key_of(step, number, rank, index), out);
  });
}

void implement(torch::Library& library) {
  library.impl("encode", TORCH_FN(encode_kernel));
  library.impl("encode.out", TORCH_FN(encode_out_kernel));
  library.impl("decode", TORCH_FN(decode_kernel));
  library.impl("decode.out", TORCH_FN(decode_out_kernel));
  library.impl("decode_add", TORCH_FN(decode_add_kernel));
  library.impl("roundtrip", TORCH_FN(roundtrip_kernel));
  library.impl("roundtrip.out", TORCH_FN(roundtrip_out_kernel));
}

}  // namespace

TORCH_LIBRARY(torch_cgx, library) {
  library.set_python_module("torch_cgx._operators");
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  const std::string key = "*, SymInt step=0, SymInt number=0, SymInt rank=0, SymInt index=0";
  define("encode(Tensor tensor, str codec, " + key + ") -> Tensor");
  define("encode.out(Tensor tensor, str codec, " + key + ", Tensor(a!) out) -> ()");
  define("decode(Tensor payload, str codec, SymInt numel, *, ScalarType dtype) -> Tensor");
  define("decode.out(Tensor payload, str codec, *, ScalarType? dtype=None, Tensor(a!) out) -> ()");
  define("decode_add(Tensor payload, str codec, *, ScalarType? dtype=None, Tensor(a!) out) -> ()");
  define("roundtrip(Tensor tensor, str codec, " + key + ") -> Tensor");
  define("roundtrip.out(Tensor tensor, str codec, " + key + ", Tensor(a!) out) -> ()");
}

TORCH_LIBRARY_IMPL(torch_cgx, CPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, CUDA, library) { implement(library); }
// Devices and layouts that are refused.
TORCH_LIBRARY_IMPL(torch_cgx, CompositeExplicitAutograd, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCUDA, library) { implement(library); }

}  // namespace cgx
