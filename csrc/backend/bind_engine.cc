#include "backend/bind_engine.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/layer_table.h"
#include "backend/settings.h"
#include "backend/version.h"
#include "base/error.h"
#include "reduce/simulate.h"

namespace py = pybind11;

namespace cgx {
namespace {

using Address = uintptr_t;
using Layers = std::vector<std::pair<size_t, std::optional<CodecSpec>>>;

const char* text_of(Rounding rounding) {
  return rounding == Rounding::kNearest ? "nearest" : "stochastic";
}

CodecSpec make_spec(const std::string& codec, int bits, int64_t bucket_size,
                    const std::string& rounding, uint64_t seed, bool skip) {
  CodecSpec spec;
  spec.name = codec;
  spec.bits = bits;
  spec.bucket_size = bucket_size;
  if (rounding == "stochastic") {
    spec.rounding = Rounding::kStochastic;
  } else if (rounding != "nearest") {
    throw ConfigError(
        str_of("rounding='", rounding, "' is not allowed; one of nearest, stochastic"));
  }
  spec.seed = seed;
  spec.skip_incomplete_buckets = skip;
  make_codec(spec);  // refuses bad values by name
  return spec;
}

std::string repr(const CodecSpec& spec) {
  return str_of("Spec(codec='", spec.name, "', bits=", spec.bits,
                ", bucket_size=", spec.bucket_size, ", rounding='", text_of(spec.rounding),
                "', seed=", spec.seed,
                ", skip_incomplete_buckets=", spec.skip_incomplete_buckets ? "True" : "False", ")");
}

DType dtype_of(int code) {
  if (code < 0 || code > 2)
    throw ConfigError(str_of("dtype code ", code, " is not one of 0, 1, 2"));
  return static_cast<DType>(code);
}

EngineOptions engine_options(const std::string& algorithm, bool raise_nonfinite) {
  EngineOptions options;
  if (algorithm == "oneshot") {
    options.reduction = Reduction::kOneShot;
  } else if (algorithm == "sra") {
    options.reduction = Reduction::kScatterReduceAllGather;
  } else if (algorithm != "auto") {
    throw ConfigError(
        str_of("algorithm='", algorithm, "' is not allowed; one of auto, oneshot, sra"));
  }
  options.nonfinite = raise_nonfinite ? NonFinite::kRaise : NonFinite::kPropagate;
  return options;
}

std::vector<Segment> segments_of(const Layers& layers) {
  std::vector<Segment> segments;
  for (const auto& [numel, spec] : layers) {
    segments.push_back({numel, spec ? make_codec(*spec) : raw_codec()});
  }
  return segments;
}

py::dict to_python(const SimulationResult& result) {
  py::list stats;
  for (const StatsSnapshot& one : result.stats) stats.append(to_dict(one));
  py::dict out;
  out["algorithm"] = result.algorithm == Algorithm::kOneShot ? "oneshot" : "sra";
  out["stats"] = stats;
  return out;
}

py::dict simulate_all_reduce_py(const std::vector<Address>& data, int dtype, const Layers& layers,
                                bool average, const std::string& algorithm, bool raise_nonfinite,
                                uint64_t sequence, size_t slot_bytes) {
  std::vector<void*> pointers;
  for (Address address : data) pointers.push_back(reinterpret_cast<void*>(address));
  SimulationResult result;
  {
    py::gil_scoped_release no_gil;
    result = simulate_all_reduce(pointers, dtype_of(dtype), segments_of(layers), average,
                                 engine_options(algorithm, raise_nonfinite), sequence, slot_bytes);
  }
  return to_python(result);
}

py::dict simulate_shards_py(const std::string& operation, const std::vector<Address>& inputs,
                            const std::vector<Address>& outputs, int dtype, size_t shard,
                            const std::optional<CodecSpec>& spec, bool average,
                            bool raise_nonfinite, uint64_t sequence, size_t slot_bytes) {
  if (operation != "reduce_scatter" && operation != "all_gather") {
    throw ConfigError(
        str_of("operation='", operation, "' is not one of reduce_scatter, all_gather"));
  }
  std::vector<const void*> in;
  std::vector<void*> out;
  for (Address address : inputs) in.push_back(reinterpret_cast<const void*>(address));
  for (Address address : outputs) out.push_back(reinterpret_cast<void*>(address));
  SimulationResult result;
  {
    py::gil_scoped_release no_gil;
    result = simulate_shards(
        operation == "reduce_scatter" ? Operation::kReduceScatter : Operation::kAllGather, in, out,
        dtype_of(dtype), shard, spec ? make_codec(*spec) : raw_codec(), average,
        engine_options("auto", raise_nonfinite), sequence, slot_bytes);
  }
  return to_python(result);
}

// For tests and for the curious: what travels where. rounds -> chunks -> pieces (offset, count,
// payload, bytes, exact).
py::list describe_plan(const Layers& layers, int dtype, int size, const std::string& algorithm,
                       size_t capacity) {
  const std::vector<Segment> segments = segments_of(layers);
  const Algorithm chosen =
      choose_algorithm(engine_options(algorithm, false).reduction,
                       one_shot_payload_bytes(segments, dtype_of(dtype)), size);
  auto plan = plan_all_reduce(segments, dtype_of(dtype), size, chosen, capacity);
  py::list rounds;
  for (const Round& round : plan->rounds) {
    py::list chunks;
    for (const Chunk& chunk : round.chunks) {
      py::list pieces;
      for (const Piece& p : chunk.pieces) {
        pieces.append(
            py::make_tuple(p.offset, p.count, p.payload, p.bytes, p.codec == raw_codec().get()));
      }
      chunks.append(pieces);
    }
    rounds.append(chunks);
  }
  return rounds;
}

py::list settings_py() {
  py::list table;
  for (const Setting& s : settings()) {
    py::dict row;
    row["name"] = s.name;
    row["variable"] = s.variable;
    row["default"] = s.fallback;
    row["per_call"] = s.per_call;
    row["compared"] = s.compared;
    table.append(row);
  }
  return table;
}

}  // namespace

py::dict to_dict(const StatsSnapshot& stats) {
  py::dict out;
  out["calls"] = stats.calls;
  out["compressed_calls"] = stats.compressed_calls;
  out["values"] = stats.values;
  out["bytes_raw"] = stats.bytes_raw;
  out["bytes_sent"] = stats.bytes_sent;
  out["bytes_received"] = stats.bytes_received;
  out["messages_sent"] = stats.messages_sent;
  out["seconds_encode"] = stats.seconds_encode;
  out["seconds_transfer"] = stats.seconds_transfer;
  out["seconds_decode"] = stats.seconds_decode;
  return out;
}

void bind_engine(py::module_& m) {
  m.attr("__version__") = kVersion;

  py::class_<CodecSpec>(m, "Spec", "What a codec is asked for; immutable and hashable.")
      .def(py::init(&make_spec), py::kw_only(), py::arg("codec") = "maxmin", py::arg("bits") = 4,
           py::arg("bucket_size") = 512, py::arg("rounding") = "nearest", py::arg("seed") = 0,
           py::arg("skip_incomplete_buckets") = false)
      .def_readonly("codec", &CodecSpec::name)
      .def_readonly("bits", &CodecSpec::bits)
      .def_readonly("bucket_size", &CodecSpec::bucket_size)
      .def_property_readonly("rounding", [](const CodecSpec& s) { return text_of(s.rounding); })
      .def_readonly("seed", &CodecSpec::seed)
      .def_readonly("skip_incomplete_buckets", &CodecSpec::skip_incomplete_buckets)
      .def("__eq__", [](const CodecSpec& a, const CodecSpec& b) { return a == b; })
      .def("__hash__", [](const CodecSpec& s) { return py::hash(py::str(repr(s))); })
      .def("__repr__", &repr);

  m.def("simulate_all_reduce", &simulate_all_reduce_py, py::arg("data"), py::arg("dtype"),
        py::arg("layers"), py::arg("average"), py::arg("algorithm"), py::arg("raise_nonfinite"),
        py::arg("sequence"), py::arg("slot_bytes"));
  m.def("simulate_shards", &simulate_shards_py, py::arg("operation"), py::arg("inputs"),
        py::arg("outputs"), py::arg("dtype"), py::arg("shard"), py::arg("spec"), py::arg("average"),
        py::arg("raise_nonfinite"), py::arg("sequence"), py::arg("slot_bytes"));

  m.def("describe_plan", &describe_plan, py::arg("layers"), py::arg("dtype"), py::arg("size"),
        py::arg("algorithm"), py::arg("capacity"));

  LayerTable& table = LayerTable::instance();
  m.def(
      "register_layer",
      [&table](int64_t bucket_idx, int64_t layer_idx, int64_t numel, int64_t bits,
               int64_t bucket_size) { table.add(bucket_idx, layer_idx, numel, bits, bucket_size); },
      py::arg("bucket_idx"), py::arg("layer_idx"), py::arg("numel"), py::arg("bits") = 0,
      py::arg("bucket_size") = 0);
  m.def(
      "set_quantization_bits",
      [&table](int64_t bucket_idx, int64_t layer_idx, int64_t bits) {
        table.set_bits(bucket_idx, layer_idx, bits);
      },
      py::arg("bucket_idx"), py::arg("layer_idx"), py::arg("bits"));
  m.def(
      "set_quantization_bucket_size",
      [&table](int64_t bucket_idx, int64_t layer_idx, int64_t bucket_size) {
        table.set_bucket_size(bucket_idx, layer_idx, bucket_size);
      },
      py::arg("bucket_idx"), py::arg("layer_idx"), py::arg("bucket_size"));
  m.def("clear_layers", [&table] { table.clear(); });
  m.def("settings", &settings_py);
}

}  // namespace cgx
