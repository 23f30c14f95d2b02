#include "bindings/gpu.h"

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>

#include "bindings/codec.h"
#include "codec/ops/random.h"
#include "tensors/gpu/bounded.h"
#include "tensors/gpu/codecs.h"
#include "tensors/gpu/cuda_float_compress.h"

namespace py = pybind11;

namespace cgx {
namespace {

// Valid for the time of one call, whose arguments hold the function.
LoadKernels loader_of(const py::function& load) {
  return [&load](int major, int minor) {
    const py::gil_scoped_acquire gil;
    return load(major, minor).cast<std::string>();
  };
}

void gpu_encode_to(const CodecHandle& handle, const at::Tensor& x, const at::Tensor& payload,
                   uint64_t sequence, int rank, const py::function& load, uint64_t index,
                   int stage) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  const Codec& codec = *handle.codec;
  gpu_encode(codec, x, payload, random_key(codec.seed(), sequence, rank, stage), index, kernels);
}

void gpu_decode_to(const CodecHandle& handle, const at::Tensor& payload, int dtype,
                   const at::Tensor& y, const py::function& load, bool add) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  gpu_decode(*handle.codec, payload, dtype_of(dtype), y, add, kernels);
}

at::Tensor bounded_look(const bounded::Slab& slab, const at::Tensor& x, const py::function& load) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  return gpu_bounded_look(slab, x, kernels);
}

at::Tensor bounded_encode(const bounded::Slab& slab, const at::Tensor& x, size_t bytes,
                          const py::function& load) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  return gpu_bounded_encode(slab, x, bytes, kernels);
}

at::Tensor bounded_decode(const bounded::Slab& slab, const at::Tensor& parts, const at::Tensor& y,
                          const py::function& load) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  return gpu_bounded_decode(slab, parts, y, kernels);
}

std::pair<at::Tensor, at::Tensor> cuda_float_compress_encode(const at::Tensor& x, float step,
                                                             double max_error, bool keep_going,
                                                             const py::function& load) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  return gpu_cuda_float_compress_encode(x, step, max_error, keep_going, kernels);
}

void cuda_float_compress_decode(const at::Tensor& raw, float step, const at::Tensor& y,
                                const py::function& load) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  gpu_cuda_float_compress_decode(raw, step, y, kernels);
}

}  // namespace

void bind_gpu(py::module_& m) {
  m.def("gpu_codec_encode", &gpu_encode_to, py::arg("codec"), py::arg("x"), py::arg("payload"),
        py::arg("sequence"), py::arg("rank"), py::arg("load_kernels"), py::kw_only(),
        py::arg("index") = 0, py::arg("stage") = 0,
        "Puts the encoding of x to payload on the current stream.");
  m.def("gpu_codec_decode", &gpu_decode_to, py::arg("codec"), py::arg("payload"),
        py::arg("dtype_code"), py::arg("y"), py::arg("load_kernels"), py::arg("add") = false,
        "Puts the decoding of payload to y, or its addition to y, on the current stream.");
  m.def("gpu_bounded_look", &bounded_look, py::arg("slab"), py::arg("x"), py::arg("load_kernels"));
  m.def("gpu_bounded_encode", &bounded_encode, py::arg("slab"), py::arg("x"), py::arg("bytes"),
        py::arg("load_kernels"));
  m.def("gpu_bounded_decode", &bounded_decode, py::arg("slab"), py::arg("parts"), py::arg("y"),
        py::arg("load_kernels"));
  m.def("gpu_cuda_float_compress_encode", &cuda_float_compress_encode, py::arg("x"),
        py::arg("step"), py::arg("max_error"), py::arg("keep_going"), py::arg("load_kernels"),
        "(words, by parts the first value that does not fit; 2^31 - 1: none).");
  m.def("gpu_cuda_float_compress_decode", &cuda_float_compress_decode, py::arg("raw"),
        py::arg("step"), py::arg("y"), py::arg("load_kernels"));
}

}  // namespace cgx
