#include "bindings/engine.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/config/handshake.h"
#include "backend/config/layer_table.h"
#include "backend/config/process_variables.h"
#include "backend/config/settings.h"
#include "backend/version.h"
#include "base/error.h"
#include "bindings/codec.h"
#include "bindings/parameters.h"
#include "reduce/plan/choose.h"
#include "reduce/simulate.h"

namespace py = pybind11;

namespace cgx {
namespace {

using Address = uintptr_t;
using LayerRequests = std::vector<std::pair<size_t, OptionalCodec>>;

const char* text_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kOneShot:
      return "oneshot";
    case Algorithm::kScatterReduceAllGather:
      return "sra";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kDirect:
      return "direct";
  }
  return "unknown";
}

// The keyword arguments that describe a simulated group:
//   ranks or hosts                number of ranks, or the name of every rank's host
//   slot_bytes, inner_bytes       bytes of an exchange inside a host: aimed at, and allowed
//   inner_limit                   bytes of an exchange that holds a single bucket
//   segment_bytes, cross_bytes    bytes of a message and of an exchange across hosts
//   direct or direct_from,        direct transfers, with one level: their least bytes,
//   direct_chunk                  and the bytes of a chunk
//   residuals, residual_dtype     addresses, by rank, and type of the residuals
//   sequence, or step and tensor  what keys random numbers
SimulatedGroup group_of(const py::dict& given) {
  auto get = [&given](const char* key, auto fallback) {
    return given.contains(key) ? given[key].cast<decltype(fallback)>() : fallback;
  };
  const auto hosts = get("hosts", std::vector<std::string>{});
  const auto ranks = get("ranks", 0);
  SimulatedGroup group{
      hosts.empty() ? Topology::one_host(ranks) : Topology(hosts, get("leader_only", false)), {}};
  const Reduction reduction = reduction_of("algorithm", get("algorithm", std::string("auto")));
  const bool across = group.topology.host_count() > 1;
  (across ? group.options.cross_reduction : group.options.intra_reduction) = reduction;
  group.options.nonfinite =
      get("raise_nonfinite", false) ? NonFinite::kRaise : NonFinite::kPropagate;
  group.options.intra_exact = get("inner_exact", true);
  group.options.direct_from = get("direct_from", get("direct", false) ? kDirectFrom : size_t{0});
  group.options.direct_chunk = get("direct_chunk", kDirectChunk);
  group.options.intra.wanted = get("slot_bytes", size_t{1} << 20);
  group.options.intra.most = get("inner_bytes", group.options.intra.wanted);
  group.options.intra.limit = get("inner_limit", kNoLimit);
  group.options.segment_bytes = get("segment_bytes", size_t{512} << 10);
  group.options.cross_bytes = get("cross_bytes", size_t{64} << 20);
  group.sequence = get("sequence", uint64_t{0});
  if (given.contains("step")) group.key = {get("step", uint64_t{0}), get("tensor", uint64_t{0})};
  return group;
}

std::vector<Residual> residuals_of(const py::dict& given) {
  std::vector<Residual> residuals;
  if (!given.contains("residuals")) return residuals;
  const DType dtype = dtype_of(given["residual_dtype"].cast<int>());
  for (Address address : given["residuals"].cast<std::vector<Address>>()) {
    residuals.push_back({reinterpret_cast<void*>(address), dtype});
  }
  return residuals;
}

std::vector<Layer> layers_of(const LayerRequests& requests) {
  std::vector<Layer> layers;
  for (const auto& [numel, codec] : requests) {
    layers.push_back({numel, codec ? codec->codec : raw_codec()});
  }
  return layers;
}

py::dict to_python(const SimulationResult& result) {
  py::list stats;
  for (const StatsSnapshot& one : result.stats) stats.append(to_dict(one));
  py::dict out;
  out["algorithm"] = text_of(result.algorithm);
  out["stats"] = stats;
  return out;
}

py::dict simulate_all_reduce_py(const std::vector<Address>& data, int dtype,
                                const LayerRequests& requests, bool average,
                                const py::kwargs& group) {
  std::vector<void*> pointers;
  for (Address address : data) pointers.push_back(reinterpret_cast<void*>(address));
  const SimulatedGroup simulated = group_of(group);
  const std::vector<Residual> residuals = residuals_of(group);
  SimulationResult result;
  {
    py::gil_scoped_release no_gil;
    result = simulate_all_reduce(simulated, pointers, dtype_of(dtype), layers_of(requests), average,
                                 residuals);
  }
  return to_python(result);
}

py::dict simulate_shards_py(const std::string& operation, const std::vector<Address>& inputs,
                            const std::vector<Address>& outputs, int dtype, size_t shard,
                            const OptionalCodec& codec, bool average, const py::kwargs& group) {
  if (operation != "reduce_scatter" && operation != "all_gather") {
    throw ConfigError(
        str_of("operation='", operation, "' is not one of reduce_scatter, all_gather"));
  }
  std::vector<const void*> in;
  std::vector<void*> out;
  for (Address address : inputs) in.push_back(reinterpret_cast<const void*>(address));
  for (Address address : outputs) out.push_back(reinterpret_cast<void*>(address));
  const SimulatedGroup simulated = group_of(group);
  const std::vector<Residual> residuals = residuals_of(group);
  SimulationResult result;
  {
    py::gil_scoped_release no_gil;
    result = simulate_shards(
        simulated,
        operation == "reduce_scatter" ? Operation::kReduceScatter : Operation::kAllGather, in, out,
        dtype_of(dtype), shard, codec ? codec->codec : raw_codec(), average, residuals);
  }
  return to_python(result);
}

// Describes a plan, for tests and for users who look into it: rounds -> shards -> chunks -> runs
// (offset, count, payload, bytes, exact).
py::list describe_plan(const LayerRequests& requests, int dtype, const py::kwargs& group) {
  const std::vector<Layer> layers = layers_of(requests);
  const SimulatedGroup simulated = group_of(group);
  auto plan = make_all_reduce_plan(simulated.options, simulated.topology, layers, dtype_of(dtype));
  py::list rounds;
  for (const Round& round : plan->rounds) {
    py::list shards;
    for (const Shard& shard : round.shards) {
      py::list chunks;
      for (const Chunk& chunk : shard.chunks) {
        py::list runs;
        for (const Run& p : chunk.runs) {
          runs.append(
              py::make_tuple(p.offset, p.count, p.payload, p.bytes, p.codec == raw_codec().get()));
        }
        chunks.append(runs);
      }
      shards.append(chunks);
    }
    rounds.append(shards);
  }
  return rounds;
}

py::list settings_py() {
  py::list table;
  for (const Setting& s : settings()) {
    py::dict row = to_dict(static_cast<const Parameter&>(s));
    row["compared"] = s.compared;
    table.append(row);
  }
  return table;
}

// The canonical Python value of a setting that was given as `where`.
py::object check_setting(const std::string& name, const py::object& value,
                         const std::string& where) {
  const Setting& known = setting(name);
  return value_of(known, canonical_of(known, where, value));
}

py::object setting_from_environment(const std::string& name) {
  const Setting& known = setting(name);
  const auto text = from_environment(known);
  return text ? value_of(known, *text) : py::none();
}

py::list process_variables_py() {
  py::list table;
  for (const Parameter* variable : process_variables()) table.append(to_dict(*variable));
  return table;
}

py::object process_variable_py(const std::string& name) {
  const Parameter& known = process_variable(name);
  return value_of(known, from_environment(known).value_or(known.fallback));
}

std::vector<std::string> codec_setting_names() {
  std::vector<std::string> names;
  for (const Parameter& p : codec_settings()) names.push_back(p.name);
  return names;
}

}  // namespace

py::dict to_dict(const StatsSnapshot& stats) {
  py::dict out;
  out["calls"] = stats.calls;
  out["compressed_calls"] = stats.compressed_calls;
  out["values"] = stats.values;
  out["bytes_raw"] = stats.bytes_raw;
  out["bytes_sent"] = stats.bytes_sent;
  out["bytes_sent_across"] = stats.bytes_sent_across;
  out["bytes_received"] = stats.bytes_received;
  out["messages_sent"] = stats.messages_sent;
  out["staging_bytes"] = stats.staging_bytes;
  out["seconds_encode"] = stats.seconds_encode;
  out["seconds_transfer"] = stats.seconds_transfer;
  out["seconds_decode"] = stats.seconds_decode;
  return out;
}

void bind_engine(py::module_& m) {
  m.attr("__version__") = kVersion;

  m.def("simulate_all_reduce", &simulate_all_reduce_py, py::arg("data"), py::arg("dtype"),
        py::arg("layers"), py::arg("average"));
  m.def("simulate_shards", &simulate_shards_py, py::arg("operation"), py::arg("inputs"),
        py::arg("outputs"), py::arg("dtype"), py::arg("shard"), py::arg("codec"),
        py::arg("average"));
  m.def("describe_plan", &describe_plan, py::arg("layers"), py::arg("dtype"));

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
  m.def("check_setting", &check_setting, py::arg("name"), py::arg("value"), py::arg("where"));
  m.def("setting_from_environment", &setting_from_environment, py::arg("name"));
  m.def("process_variables", &process_variables_py, "Variables of the process, not of a group.");
  m.def("process_variable", &process_variable_py, py::arg("name"), "Its value in force.");
  m.def("host_identity", &host_identity, py::arg("host_id"),
        "Equal for processes that a group puts on one host: machine, /dev/shm, and host_id.");
  m.def("codec_settings", &codec_setting_names, "Names of the settings that choose a codec.");
}

}  // namespace cgx
