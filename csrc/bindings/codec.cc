#include "bindings/codec.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <string>

#include "base/error.h"
#include "bindings/parameters.h"
#include "codec/choice.h"
#include "codec/feedback.h"
#include "codec/ops/level.h"
#include "tensors/checks.h"
#include "tensors/codec_text.h"
#include "tensors/gpu/kernels.h"
#include "tensors/operators.h"

namespace py = pybind11;

namespace cgx {

namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

// Looks the image of the kernels up where it is needed: on the first GPU.
std::string load_kernels(int major, int minor) {
  const py::gil_scoped_acquire gil;
  const py::object load = py::module_::import("torch_cgx._backend").attr("load_kernels");
  return load(major, minor).cast<std::string>();
}

// `where`: the function that got the parameters, for errors.
CodecHandle make_handle(const std::string& where, CodecConfig config, const py::dict& parameters) {
  for (const auto& [key, value] : parameters) {
    const std::string name = py::str(key);
    const Parameter& known = config.family().parameters[config.family().place_of(name)];
    config.set(name, canonical_of(known, str_of(where, name), value));
  }
  return {make_codec(config)};
}

py::dict parameters_of(const Codec& codec) {
  py::dict out;
  for (const Parameter& p : codec.config().family().parameters) {
    out[py::str(p.name)] = value_of(p, codec.config().text(p.name));
  }
  return out;
}

std::string codec_repr(const Codec& codec) {
  std::string text = "Codec(codec='" + codec.config().name() + "'";
  for (const auto& [name, value] : parameters_of(codec)) {
    text += str_of(", ", std::string(py::str(name)), "=", std::string(py::repr(value)));
  }
  return text + ")";
}

py::list families_py() {
  py::list all;
  for (const Family* family : families()) {
    py::dict row;
    row["id"] = family->id;
    row["name"] = family->name;
    row["python"] = family->python;
    row["variant"] = family->variant;
    row["meaning"] = family->meaning;
    row["doc"] = family->doc;
    row["kernels"] = family->gpu_runs != nullptr;
    py::list parameters;
    for (const Parameter& p : family->parameters) parameters.append(to_dict(p));
    row["parameters"] = parameters;
    all.append(row);
  }
  return all;
}

// The codec that values of all codec settings mean; none: exact.
OptionalCodec choose(const py::dict& values) {
  const auto codec = choose_codec([&](const std::string& name) {
    for (const Parameter& p : codec_settings()) {
      if (p.name == name) return canonical_of(p, "config: " + name, values[name.c_str()]);
    }
    throw Error("no codec setting is called " + name);
  });
  if (codec == raw_codec()) return std::nullopt;
  return CodecHandle{codec};
}

at::Tensor decode_py(const CodecHandle& h, const at::Tensor& payload,
                     const std::optional<at::Tensor>& out, std::optional<c10::SymInt> numel,
                     std::optional<at::ScalarType> dtype, bool add) {
  const std::string& codec = h.codec->describe();
  TORCH_CHECK_VALUE(out || !add, "add=True needs out, to which the values are added");
  if (!out) {
    const at::ScalarType type = dtype.value_or(at::kFloat);
    if (!numel) {
      check_payload("payload", payload);
      numel = static_cast<int64_t>(largest_count(*h.codec, static_cast<size_t>(payload.numel()),
                                                 codec_dtype("dtype", type)));
    }
    return operators::decode(payload, codec, *numel, type);
  }
  TORCH_CHECK_VALUE(!numel || *numel == out->sym_numel(), "numel is ", *numel,
                    ", allowed with this out: ", out->sym_numel());
  (add ? operators::decode_add : operators::decode_out)(payload, codec, dtype, *out);
  return *out;
}

// The coefficients of PayloadSize, for sizes that are symbols.
std::array<size_t, 5> payload_size(const std::string& codec, at::ScalarType dtype) {
  const PayloadSize size = codec_of_text(codec)->payload_size(codec_dtype("dtype", dtype));
  return {size.bits, size.bucket, size.bucket_bytes, size.rest_bytes, size.start};
}

void bind_class(py::module_& m) {
  py::class_<CodecHandle>(m, "Codec", "A codec of the engine; immutable and hashable.")
      .def(py::init([](const std::string& codec, const py::kwargs& parameters) {
             const std::string where = str_of("codec ", codec, ": ");
             return make_handle(where, config_named(codec), parameters);
           }),
           py::arg("codec") = "maxmin")
      .def_property_readonly("codec", [](const CodecHandle& h) { return h.codec->config().name(); })
      .def_property_readonly("family",
                             [](const CodecHandle& h) { return h.codec->config().family().name; })
      .def_property_readonly("parameters",
                             [](const CodecHandle& h) { return parameters_of(*h.codec); })
      .def_property_readonly("bits", [](const CodecHandle& h) { return h.codec->bits(); })
      .def_property_readonly("granule", [](const CodecHandle& h) { return h.codec->granule(); })
      .def_property_readonly("block", [](const CodecHandle& h) { return h.codec->block(); })
      .def("describe", [](const CodecHandle& h) { return h.codec->describe(); })
      .def("__getattr__",
           [](const CodecHandle& h, const std::string& name) {
             const CodecConfig& config = h.codec->config();
             if (!config.family().has(name)) {
               throw py::attribute_error(
                   str_of(codec_repr(*h.codec), " has no parameter '", name, "'"));
             }
             return value_of(config.family().parameters[config.family().place_of(name)],
                             config.text(name));
           })
      .def("__eq__", [](const CodecHandle& a, const CodecHandle& b) { return a.codec == b.codec; })
      .def("__eq__", [](const CodecHandle&, const py::object&) { return false; })
      .def("__hash__", [](const CodecHandle& h) { return h.codec->config().hash(); })
      .def("__repr__", [](const CodecHandle& h) { return codec_repr(*h.codec); })
      .def(
          "encoded_bytes",
          [](const CodecHandle& h, size_t numel, at::ScalarType dtype) {
            return h.codec->encoded_bytes(numel, codec_dtype("dtype", dtype));
          },
          py::arg("numel"), py::arg("dtype"))
      .def(
          "encode",
          [](const CodecHandle& h, const at::Tensor& tensor, uint64_t sequence, int64_t rank,
             int64_t index, const std::optional<at::Tensor>& out, int64_t number) {
            const operators::Key key{static_cast<int64_t>(sequence), number, rank, index};
            if (!out) return operators::encode(tensor, h.codec->describe(), key);
            operators::encode_out(tensor, h.codec->describe(), key, *out);
            return *out;
          },
          py::arg("tensor"), py::arg("sequence") = 0, py::arg("rank") = 0, py::arg("index") = 0,
          py::arg("out") = py::none(), py::arg("number") = 0, NoGil())
      .def("decode", &decode_py, py::arg("payload"), py::arg("out") = py::none(),
           py::arg("numel") = py::none(), py::arg("dtype") = py::none(), py::arg("add") = false,
           NoGil())
      .def(
          "roundtrip",
          [](const CodecHandle& h, const at::Tensor& tensor, uint64_t sequence, int64_t rank,
             int64_t index, const std::optional<at::Tensor>& out, int64_t number) {
            const operators::Key key{static_cast<int64_t>(sequence), number, rank, index};
            if (!out) return operators::roundtrip(tensor, h.codec->describe(), key);
            operators::roundtrip_out(tensor, h.codec->describe(), key, *out);
            return *out;
          },
          py::arg("tensor"), py::arg("sequence") = 0, py::arg("rank") = 0, py::arg("index") = 0,
          py::arg("out") = py::none(), py::arg("number") = 0, NoGil());
}

}  // namespace

void bind_codec(py::module_& m) {
  set_kernel_loader(&load_kernels);
  bind_class(m);
  m.def("payload_size", &payload_size, py::arg("codec"), py::arg("dtype"),
        "(bits, bucket, bucket_bytes, rest_bytes, start) of PayloadSize in csrc/codec/codec.h.");
  m.attr("EXACT_BITS") = kExactBits;
  m.attr("HALF_BITS") = kHalfBits;
  m.attr("MAX_BITS") = kMostBits;
  m.def("is_exact", &is_exact, py::arg("bits"), "Whether so many bits mean exact values.");
  m.def("families", &families_py, "The declarations of all families of codecs.");
  m.def("codec_names", &codec_names, NoGil(), "Names of codecs, sorted, comma-separated.");
  m.def("choose_codec", &choose, py::arg("values"),
        "The codec that values of all codec settings mean; None: exact.");
  m.def(
      "codec_of",
      [](const std::string& where, const std::string& name, const py::dict& parameters) {
        return make_handle(where, config_named(name), parameters);
      },
      py::arg("where"), py::arg("name"), py::arg("parameters"));

  m.def(
      "check_feedback", [](const CodecHandle& h) { check_feedback(*h.codec); }, py::arg("codec"),
      "ValueError for a codec with which residuals of error feedback grow without bound.");

  m.def("cpu_level", &cpu_level, "Name of the SIMD level in force.");
  m.def("set_cpu_level", &set_cpu_level, py::arg("name"),
        "Pins a SIMD level; '' returns to the default.");
  m.def("cpu_levels", &cpu_levels, "SIMD levels of this CPU, worst first, comma-separated.");
}

}  // namespace cgx
