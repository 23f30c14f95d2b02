#include "bindings/bdi.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/adapters/gil.h"
#include "base/error.h"
#include "codec/bdi/payload.h"
#include "tensors/threads.h"

namespace py = pybind11;

namespace cgx {
namespace {

using BdiConfigs = std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>;
using BdiScales = std::tuple<uint32_t, uint32_t, uint32_t>;

const std::byte* bdi_bytes(uintptr_t address) {
  return reinterpret_cast<const std::byte*>(address);
}

std::unique_ptr<bdi::Encoded> bdi_encode(uintptr_t words, int dtype,
                                         const std::vector<uint64_t>& shape,
                                         const BdiConfigs& configs, uint32_t batch,
                                         const std::vector<uint32_t>& immediates,
                                         const BdiScales& scales, bool zero_mask, bool stochastic,
                                         bool random_bases, uint64_t seed) {
  bdi::Format format;
  format.words = static_cast<bdi::Words>(dtype);
  format.zero_mask = zero_mask;
  format.batch = batch;
  std::tie(format.scale_init, format.scale_base, format.scale_delta) = scales;
  format.immediates = immediates;
  for (const auto& [bases, base_bits, delta_bits] : configs) {
    format.configs.push_back({bases, base_bits, delta_bits});
  }
  return std::make_unique<bdi::Encoded>(format, bdi::EncoderOptions{stochastic, random_bases, seed},
                                        shape, reinterpret_cast<const uint32_t*>(words),
                                        *torch_threads());
}

// What the header says, and the number of chunks.
py::dict bdi_read(uintptr_t address, size_t bytes) {
  const auto payload = [&] {
    const WithoutGil no_gil;
    return bdi::Payload(bdi_bytes(address), bytes);
  }();
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

// What bdi_read() has found, and the caller has made memory for: another thread may have written to
// the payload since.
void bdi_check_count(const char* what, uint64_t count, uint64_t expected) {
  if (count == expected) return;
  throw ConfigError(str_of("BDI payload: it has ", count, " ", what, ", and had ", expected,
                           ": it was altered while it was read"));
}

void bdi_chunks(uintptr_t address, size_t bytes, uint64_t count, uintptr_t configs, uintptr_t bits,
                uintptr_t zeros) {
  const bdi::Payload payload(bdi_bytes(address), bytes);
  bdi_check_count("chunks", payload.chunks(), count);
  const bdi::Format& format = payload.format();
  auto* configs_out = reinterpret_cast<int16_t*>(configs);
  auto* bits_out = reinterpret_cast<int32_t*>(bits);
  auto* zeros_out = reinterpret_cast<int16_t*>(zeros);
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

void bdi_decode(uintptr_t address, size_t bytes, uint64_t count, uintptr_t words) {
  const bdi::Payload payload(bdi_bytes(address), bytes);
  bdi_check_count("words", payload.words(), count);
  payload.decode(reinterpret_cast<uint32_t*>(words), *torch_threads());
}

}  // namespace

void bind_bdi(py::module_& m) {
  using NoGil = py::call_guard<WithoutGil>;
  py::class_<bdi::Encoded>(m, "BdiEncoded", "The chunks of a tensor of words, encoded.")
      .def(py::init(&bdi_encode), NoGil(), py::arg("words_ptr"), py::arg("dtype_code"),
           py::arg("shape"), py::kw_only(), py::arg("configs"), py::arg("batch_size"),
           py::arg("immediates"), py::arg("scales"), py::arg("zero_mask"), py::arg("stochastic"),
           py::arg("random_bases"), py::arg("seed"))
      .def_property_readonly("bytes", &bdi::Encoded::bytes)
      .def(
          "write",
          [](const bdi::Encoded& encoded, uintptr_t out) {
            encoded.write(reinterpret_cast<std::byte*>(out));
          },
          NoGil(), py::arg("out_ptr"), "Writes the payload: `bytes` bytes.");
  m.def("bdi_read", &bdi_read, py::arg("payload_ptr"), py::arg("size"),
        "Checks a payload; returns what its header says, and the number of chunks.");
  m.def("bdi_chunks", &bdi_chunks, NoGil(), py::arg("payload_ptr"), py::arg("size"),
        py::arg("chunks"), py::arg("choice_ptr"), py::arg("bits_ptr"), py::arg("zeros_ptr"),
        "For each chunk: its configuration or -1 (int16), bits as NNW-BDI accounts them (int32), "
        "words of the zero mask (int16).");
  m.def("bdi_decode", &bdi_decode, NoGil(), py::arg("payload_ptr"), py::arg("size"),
        py::arg("count"), py::arg("words_ptr"), "Checks a payload and writes its words.");
}

}  // namespace cgx
