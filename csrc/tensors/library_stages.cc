// The operators for stages of compressors: schemas and kernels, as library.cc has those of codecs.
#include <torch/library.h>

#include <string>

#include "tensors/bounded.h"
#include "tensors/cuda_float_compress.h"
#include "tensors/for_torch.h"

namespace cgx {
namespace {

at::Tensor look_kernel(const at::Tensor& tensor, int64_t kind, double bound, int64_t version) {
  return for_torch([&] { return bounded_look(tensor, {kind, bound, version}); });
}

at::Tensor encode_kernel_of_blocks(const at::Tensor& tensor, const at::Tensor& forms, int64_t bytes,
                                   int64_t kind, double bound, int64_t version) {
  return for_torch([&] { return bounded_encode(tensor, forms, bytes, {kind, bound, version}); });
}

at::Tensor decode_kernel_of_blocks(const at::Tensor& parts, const at::Tensor& forms, int64_t values,
                                   int64_t kind, double bound, int64_t version,
                                   const at::Tensor& out) {
  return for_torch(
      [&] { return bounded_decode(parts, forms, values, {kind, bound, version}, out); });
}

void words_kernel(const at::Tensor& tensor, double step, double max_error, bool keep_going,
                  const at::Tensor& words, const at::Tensor& misfits) {
  for_torch(
      [&] { cuda_float_compress_encode(tensor, step, max_error, keep_going, words, misfits); });
}

void values_kernel(const at::Tensor& words, double step, const at::Tensor& out) {
  for_torch([&] { cuda_float_compress_decode(words, step, out); });
}

void implement_stages(torch::Library& library) {
  library.impl("bounded_look", TORCH_FN(look_kernel));
  library.impl("bounded_encode", TORCH_FN(encode_kernel_of_blocks));
  library.impl("bounded_decode", TORCH_FN(decode_kernel_of_blocks));
  library.impl("cuda_float_compress_encode", TORCH_FN(words_kernel));
  library.impl("cuda_float_compress_decode", TORCH_FN(values_kernel));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cgx, library) {
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  const std::string key = "int kind, float bound, int version";
  define("bounded_look(Tensor tensor, *, " + key + ") -> Tensor");
  define("bounded_encode(Tensor tensor, Tensor forms, SymInt bytes, *, " + key + ") -> Tensor");
  define("bounded_decode(Tensor parts, Tensor forms, SymInt values, *, " + key +
         ", Tensor(a!) out) -> Tensor");
  define(
      "cuda_float_compress_encode(Tensor tensor, float step, float max_error, bool keep_going, *, "
      "Tensor(a!) words, Tensor(b!) misfits) -> ()");
  define("cuda_float_compress_decode(Tensor words, float step, *, Tensor(a!) out) -> ()");
}

TORCH_LIBRARY_IMPL(torch_cgx, CPU, library) { implement_stages(library); }
TORCH_LIBRARY_IMPL(torch_cgx, CUDA, library) { implement_stages(library); }
TORCH_LIBRARY_IMPL(torch_cgx, CompositeExplicitAutograd, library) { implement_stages(library); }
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCPU, library) { implement_stages(library); }
TORCH_LIBRARY_IMPL(torch_cgx, NestedTensorCUDA, library) { implement_stages(library); }

}  // namespace cgx
