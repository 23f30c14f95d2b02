#include "bindings/gpu.h"

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "backend/gpu/codecs.h"
#include "bindings/codec.h"
#include "codec/ops/random.h"

namespace py = pybind11;

namespace cgx {
namespace {

// For the time of one call, whose arguments hold the function.
LoadKernels loader_of(const py::function& load) {
  return [&load](int major, int minor) {
    const py::gil_scoped_acquire gil;
    return load(major, minor).cast<std::string>();
  };
}

void encode(const std::string& name, int bits, int64_t bucket_size, const std::string& rounding,
            bool skip, uint64_t seed, const at::Tensor& x, const at::Tensor& payload,
            uint64_t sequence, int rank, const py::function& load, uint64_t index, int stage) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  const auto codec = codec_of(name, bits, bucket_size, rounding, skip, seed);
  gpu_encode(*codec, x, payload, random_key(seed, sequence, rank, stage), index, kernels);
}

void decode(const std::string& name, int bits, int64_t bucket_size, const std::string& rounding,
            bool skip, uint64_t seed, const at::Tensor& payload, int dtype, const at::Tensor& y,
            const py::function& load, bool add) {
  const LoadKernels kernels = loader_of(load);
  const py::gil_scoped_release no_gil;
  const auto codec = codec_of(name, bits, bucket_size, rounding, skip, seed);
  gpu_decode(*codec, payload, dtype_of(dtype), y, add, kernels);
}

}  // namespace

void bind_gpu(py::module_& m) {
  m.def("gpu_codec_encode", &encode, py::arg("name"), py::arg("bits"), py::arg("bucket_size"),
        py::arg("rounding"), py::arg("skip"), py::arg("seed"), py::arg("x"), py::arg("payload"),
        py::arg("sequence"), py::arg("rank"), py::arg("load_kernels"), py::kw_only(),
        py::arg("index") = 0, py::arg("stage") = 0,
        "Puts the encoding of x to payload on the current stream.");
  m.def("gpu_codec_decode", &decode, py::arg("name"), py::arg("bits"), py::arg("bucket_size"),
        py::arg("rounding"), py::arg("skip"), py::arg("seed"), py::arg("payload"),
        py::arg("dtype_code"), py::arg("y"), py::arg("load_kernels"), py::arg("add") = false,
        "Puts the decoding of payload to y, or its addition to y, on the current stream.");
}

}  // namespace cgx
