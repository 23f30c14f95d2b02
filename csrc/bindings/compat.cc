#include "bindings/compat.h"

#include <tuple>

#include "backend/adapters/gil.h"
#include "codec/compat/cuda_float_compress.h"

namespace py = pybind11;

namespace cgx {

void bind_compat(py::module_& m) {
  using NoGil = py::call_guard<WithoutGil>;
  m.def(
      "cuda_float_compress_encode",
      [](uintptr_t x, size_t n, float step, double max_error, bool keep_going, uintptr_t raw) {
        const auto misfits =
            cuda_float_compress::encode(reinterpret_cast<const float*>(x), n, step, max_error,
                                        keep_going, reinterpret_cast<uint32_t*>(raw));
        return std::tuple(misfits.range, misfits.bound);
      },
      NoGil(), py::arg("x_ptr"), py::arg("n"), py::arg("step"), py::arg("max_error"),
      py::arg("keep_going"), py::arg("raw_ptr"),
      "Values to the words that the entropy coder gets. (first value out of range, first value out "
      "of the bound); n: none.");
  m.def(
      "cuda_float_compress_decode",
      [](uintptr_t raw, size_t n, float step, uintptr_t y) {
        cuda_float_compress::decode(reinterpret_cast<const uint32_t*>(raw), n, step,
                                    reinterpret_cast<float*>(y));
      },
      NoGil(), py::arg("raw_ptr"), py::arg("n"), py::arg("step"), py::arg("y_ptr"));
  m.def(
      "cuda_float_compress_range",
      [](uintptr_t x, size_t n, float step) {
        float largest = 0;
        const size_t first = cuda_float_compress::first_out_of_range(
            reinterpret_cast<const float*>(x), n, step, &largest);
        return std::tuple(first, largest);
      },
      NoGil(), py::arg("x_ptr"), py::arg("n"), py::arg("step"),
      "(first value out of range, n: none; largest magnitude).");
  m.def("cuda_float_compress_step", &cuda_float_compress::exact_step, NoGil(), py::arg("max_error"),
        py::arg("largest"), "The step that keeps max_error for magnitudes up to largest.");
}

}  // namespace cgx
