#include "bindings/bdi.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/adapters/gil.h"
#include "base/error.h"
#include "codec/bdi/payload.h"
#include "tensors/memory.h"
#include "tensors/threads.h"

namespace py = pybind11;

namespace cgx {
namespace {

using BdiConfigs = std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>;
using BdiScales = std::tuple<uint32_t, uint32_t, uint32_t>;

// Of a tensor on the CPU: all of it, as values of T.
template <typename T>
T* bdi_memory(const char* what, const at::Tensor& tensor) {
  return reinterpret_cast<T*>(
      host_bytes(what, tensor, sizeof(T), 0, static_cast<size_t>(tensor.numel())));
}

bdi::Payload bdi_payload(const at::Tensor& payload) {
  const auto* bytes = bdi_memory<const std::byte>("payload", payload);
  const WithoutGil no_gil;
  return {bytes, static_cast<size_t>(payload.numel())};
}

// What bdi_read() has found, and the caller has made memory for: another thread may have written to
// the payload since.
void bdi_check_count(const char* what, uint64_t count, uint64_t expected) {
  if (count == expected) return;
  throw ConfigError(str_of("BDI payload: it has ", count, " ", what, ", and had ", expected,
                           ": it was altered while it was read"));
}

std::unique_ptr<bdi::Encoded> bdi_encode(const at::Tensor& words, int dtype,
                                         const std::vector<uint64_t>& shape,
                                         const BdiConfigs& configs, uint32_t batch,
                                         const std::vector<uint32_t>& immediates,
                                         const BdiScales& scales, bool zero_mask, bool stochastic,
                                         bool random_bases, uint64_t seed) {
  const auto* values = bdi_memory<const uint32_t>("words", words);
  size_t count = 1;
  for (const uint64_t size : shape) count *= size;
  bdi_check_count("words", static_cast<uint64_t>(words.numel()), count);
  bdi::Format format;
  format.words = static_cast<bdi::Words>(dtype);
  format.zero_mask = zero_mask;
  format.batch = batch;
  std::tie(format.scale_init, format.scale_base, format.scale_delta) = scales;
  format.immediates = immediates;
  for (const auto& [bases, base_bits, delta_bits] : configs) {
    format.configs.push_back({bases, base_bits, delta_bits});
  }
  const WithoutGil no_gil;
  return std::make_unique<bdi::Encoded>(format, bdi::EncoderOptions{stochastic, random_bases, seed},
                                        shape, values, *torch_threads());
}

// What the header says, and the number of chunks.
py::dict bdi_read(const at::Tensor& tensor) {
  const bdi::Payload payload = bdi_payload(tensor);
  const bdi::Format& format = payload.format();
  py::list configs;
  for (const bdi::Config& config : format.configs) {
    configs.append(py::make_tuple(config.bases, config.base_bits, config.delta_bits));
  }
  py::dict head;
  head["dtype_code"] = static_cast<int>(format.words);
  head["shape"] = py::tuple(py::cast(payload.shape()));
  head["batch_size"] = format.batch;
  head["configs"] = configs;
  head["immediates"] = py::tuple(py::cast(format.immediates));
  head["scales"] = py::make_tuple(format.scale_init, format.scale_base, format.scale_delta);
  head["zero_mask"] = format.zero_mask;
  head["chunks"] = payload.chunks();
  return head;
}

void bdi_chunks(const at::Tensor& tensor, const at::Tensor& configs, const at::Tensor& bits,
                const at::Tensor& zeros) {
  const bdi::Payload payload = bdi_payload(tensor);
  for (const at::Tensor& out : {configs, bits, zeros}) {
    bdi_check_count("chunks", payload.chunks(), static_cast<uint64_t>(out.numel()));
  }
  auto* configs_out = bdi_memory<int16_t>("configs", configs);
  auto* bits_out = bdi_memory<int32_t>("bits", bits);
  auto* zeros_out = bdi_memory<int16_t>("zeros", zeros);
  const WithoutGil no_gil;
  const bdi::Format& format = payload.format();
  payload.for_each([&](const bdi::Chunk& chunk) {
    const bool raw = chunk.number == bdi::kRaw;
    const uint64_t size = raw ? 32 * uint64_t{chunk.words}
                              : bdi::accounted_bits(format, format.configs[chunk.number - 1u],
                                                    chunk.words, chunk.nonzero);
    *configs_out++ = static_cast<int16_t>(chunk.number - 1);
    *bits_out++ = static_cast<int32_t>(size);
    *zeros_out++ = static_cast<int16_t>(chunk.words - chunk.nonzero);
  });
}

void bdi_decode(const at::Tensor& tensor, const at::Tensor& words) {
  const bdi::Payload payload = bdi_payload(tensor);
  bdi_check_count("words", payload.words(), static_cast<uint64_t>(words.numel()));
  auto* out = bdi_memory<uint32_t>("words", words);
  const WithoutGil no_gil;
  payload.decode(out, *torch_threads());
}

void bdi_write(const bdi::Encoded& encoded, const at::Tensor& out) {
  bdi_check_count("bytes", encoded.bytes(), static_cast<uint64_t>(out.numel()));
  auto* to = bdi_memory<std::byte>("out", out);
  const WithoutGil no_gil;
  encoded.write(to);
}

}  // namespace

void bind_bdi(py::module_& m) {
  py::class_<bdi::Encoded>(m, "BdiEncoded", "The chunks of a tensor of words, encoded.")
      .def(py::init(&bdi_encode), py::arg("words"), py::arg("dtype_code"), py::arg("shape"),
           py::kw_only(), py::arg("configs"), py::arg("batch_size"), py::arg("immediates"),
           py::arg("scales"), py::arg("zero_mask"), py::arg("stochastic"), py::arg("random_bases"),
           py::arg("seed"))
      .def_property_readonly("bytes", &bdi::Encoded::bytes)
      .def("write", &bdi_write, py::arg("out"), "Writes the payload: `bytes` bytes.");
  m.def("bdi_read", &bdi_read, py::arg("payload"),
        "Checks a payload; returns what its header says, and the number of chunks.");
  m.def("bdi_chunks", &bdi_chunks, py::arg("payload"), py::arg("choice"), py::arg("bits"),
        py::arg("zeros"),
        "For each chunk: its configuration or -1 (int16), bits as NNW-BDI accounts them (int32), "
        "words of the zero mask (int16).");
  m.def("bdi_decode", &bdi_decode, py::arg("payload"), py::arg("words"),
        "Checks a payload and writes its words.");
}

}  // namespace cgx
