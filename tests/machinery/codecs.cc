#include "machinery/codecs.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>

#include "codec/ops/convert.h"
#include "codec/ops/finite.h"
#include "codec/ops/kernels.h"
#include "codec/ops/level.h"
#include "machinery/bindings.h"

namespace py = pybind11;

namespace cgx {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

template <typename T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void encode_at(const CodecHandle& handle, uintptr_t x, int dtype, size_t n, uint64_t sequence,
               int rank, uintptr_t out, uint64_t index, int stage, size_t first,
               std::optional<size_t> count, std::optional<int> x_dtype) {
  const auto codec = own_codec(handle);
  const DType type = dtype_of(dtype);
  codec->encode(at<const void>(x), x_dtype ? dtype_of(*x_dtype) : type, type, count.value_or(n),
                first, n, random_key(codec->seed(), sequence, rank, stage), index,
                at<std::byte>(out));
}

void decode_at(const CodecHandle& handle, uintptr_t payload, int dtype, size_t n, uintptr_t y,
               bool add, size_t first, std::optional<size_t> count) {
  own_codec(handle)->decode(at<const std::byte>(payload), dtype_of(dtype), count.value_or(n), first,
                            n, at<float>(y), add);
}

void convert(uintptr_t x, int x_dtype, size_t n, uintptr_t y, int y_dtype) {
  if (dtype_of(y_dtype) == DType::kFloat32) {
    to_float(at<const void>(x), dtype_of(x_dtype), n, at<float>(y));
  } else if (dtype_of(x_dtype) == DType::kFloat32) {
    from_float(at<const float>(x), dtype_of(y_dtype), n, at<void>(y));
  } else {
    throw ConfigError(str_of("conversion from ", name_of(dtype_of(x_dtype)), " to ",
                             name_of(dtype_of(y_dtype)), ", allowed: from or to float32"));
  }
}

std::tuple<float, float> scan(uintptr_t x, int dtype, size_t n) {
  if (n == 0) throw ConfigError("codec_scan() of 0 values, allowed: 1 or more");
  float min = 0;
  float max = 0;
  cpu::kernels().scan(at<const std::byte>(x), dtype_of(dtype), n, &min, &max);
  return {min, max};
}

void bind_operations(py::module_& m) {
  m.def("codec_convert", &convert, NoGil(), py::arg("x_ptr"), py::arg("x_dtype_code"), py::arg("n"),
        py::arg("y_ptr"), py::arg("y_dtype_code"), "Converts from or to float32.");
  m.def(
      "codec_all_finite",
      [](uintptr_t x, int dtype, size_t n) {
        return all_finite(at<const void>(x), dtype_of(dtype), n);
      },
      NoGil(), py::arg("x_ptr"), py::arg("dtype_code"), py::arg("n"),
      "Whether no value is NaN or Inf.");
  m.def("codec_scan", &scan, NoGil(), py::arg("x_ptr"), py::arg("dtype_code"), py::arg("n"),
        "(min, max) of n >= 1 values: the roof of every encoder, for benchmarks.");
  m.def(
      "codec_add",
      [](uintptr_t x, int dtype, size_t n, uintptr_t y) {
        add_to_float(at<const void>(x), dtype_of(dtype), n, at<float>(y));
      },
      NoGil(), py::arg("x_ptr"), py::arg("dtype_code"), py::arg("n"), py::arg("y_ptr"),
      "y += x in float32: the roof of decoding, for benchmarks.");
  m.def(
      "codec_divide",
      [](uintptr_t y, size_t n, float divisor) { divide(at<float>(y), n, divisor); }, NoGil(),
      py::arg("y_ptr"), py::arg("n"), py::arg("divisor"), "y /= divisor in float32.");
  m.def(
      "codec_random_bits",
      [](uint64_t seed, uint64_t sequence, int rank, int stage, uint64_t index) {
        const RandomKey key = key_of_high(random_key(seed, sequence, rank, stage),
                                          static_cast<uint32_t>(index >> 32));
        return random_bits(static_cast<uint32_t>(index), key.low, key.high);
      },
      py::arg("seed"), py::arg("sequence"), py::arg("rank"), py::arg("stage"), py::arg("index"),
      "The generator's 32 bits for one element.");
}

}  // namespace

void bind_codecs(py::module_& m, const py::module_& engine) {
  m.def("codec_encode", &encode_at, NoGil(), py::arg("codec"), py::arg("x_ptr"),
        py::arg("dtype_code"), py::arg("n"), py::arg("sequence"), py::arg("rank"),
        py::arg("out_ptr"), py::kw_only(), py::arg("index") = 0, py::arg("stage") = 0,
        py::arg("first") = 0, py::arg("count") = py::none(), py::arg("x_dtype_code") = py::none(),
        "Encodes n values at x_ptr: values [first, first + n) of a run of count (default n). "
        "out_ptr is the start of the whole run's payload.");
  m.def("codec_decode", &decode_at, NoGil(), py::arg("codec"), py::arg("payload_ptr"),
        py::arg("dtype_code"), py::arg("n"), py::arg("y_ptr"), py::arg("add") = false,
        py::kw_only(), py::arg("first") = 0, py::arg("count") = py::none(),
        "Decodes values [first, first + n) of a run to float32 at y_ptr, or adds them.");
  m.def(
      "codec_encoded_bytes",
      [](const CodecHandle& h, size_t n, int dtype) {
        return own_codec(h)->encoded_bytes(n, dtype_of(dtype));
      },
      py::arg("codec"), py::arg("n"), py::arg("dtype_code"), "Size of the payload of n values.");
  bind_operations(m);
  m.def(
      "pin_cpu_level",
      [engine](const std::string& name) {
        engine.attr("set_cpu_level")(name);
        set_cpu_level(name);
      },
      py::arg("name"),
      "Pins a SIMD level, in torch_cgx._C and in this module; '' returns to the default.");
}

}  // namespace cgx
