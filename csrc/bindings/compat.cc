#include "bindings/compat.h"

#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "backend/adapters/gil.h"
#include "codec/compat/cuda_float_compress.h"
#include "codec/compat/gpu/call.h"
#include "tensors/cuda_float_compress.h"

namespace py = pybind11;

namespace cgx {

void bind_compat(py::module_& m) {
  m.attr("CUDA_FLOAT_COMPRESS_PART") = cuda_float_compress::on_gpu::kPartValues;
  using NoGil = py::call_guard<WithoutGil>;
  m.def(
      "cuda_float_compress_range",
      [](const at::Tensor& x, float step) {
        float largest = 0;
        const size_t first = cuda_float_compress::first_out_of_range(
            cuda_float_compress_values(x), static_cast<size_t>(x.numel()), step, &largest);
        return std::tuple(first, largest);
      },
      NoGil(), py::arg("tensor"), py::arg("step"),
      "(first value out of range, numel: none; largest magnitude).");
  m.def("cuda_float_compress_step", &cuda_float_compress::exact_step, NoGil(), py::arg("max_error"),
        py::arg("largest"), "The step that keeps max_error for magnitudes up to largest.");
}

}  // namespace cgx
