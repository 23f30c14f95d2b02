#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "bindings/simulation.h"
#include "machinery/bindings.h"
#include "machinery/codecs.h"
#include "reduce/plan/choose.h"

namespace py = pybind11;

namespace cgx {
namespace {

std::shared_ptr<const Codec> own_or_raw(const OptionalCodec& codec) {
  return codec ? own_codec(*codec) : raw_codec();
}

py::dict simulate_shards_py(const std::string& operation, const std::vector<uintptr_t>& inputs,
                            const std::vector<uintptr_t>& outputs, int dtype, size_t shard,
                            const OptionalCodec& codec, bool average, const py::kwargs& group) {
  if (operation != "reduce_scatter" && operation != "all_gather") {
    throw ConfigError(
        str_of("operation='", operation, "' is not one of reduce_scatter, all_gather"));
  }
  std::vector<const void*> in;
  std::vector<void*> out;
  for (uintptr_t address : inputs) in.push_back(reinterpret_cast<const void*>(address));
  for (uintptr_t address : outputs) out.push_back(reinterpret_cast<void*>(address));
  const SimulatedGroup simulated = group_of(group);
  SimulationResult result;
  {
    py::gil_scoped_release no_gil;
    result = simulate_shards(
        simulated,
        operation == "reduce_scatter" ? Operation::kReduceScatter : Operation::kAllGather, in, out,
        dtype_of(dtype), shard, own_or_raw(codec), average);
  }
  return to_dict(result);
}

py::list describe_plan(const LayerRequests& requests, int dtype, const py::kwargs& group) {
  std::vector<Layer> layers;
  for (const auto& [numel, codec] : requests) layers.push_back({numel, own_or_raw(codec)});
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

}  // namespace

void bind_plans(py::module_& m) {
  m.def("simulate_shards", &simulate_shards_py, py::arg("operation"), py::arg("inputs"),
        py::arg("outputs"), py::arg("dtype"), py::arg("shard"), py::arg("codec"),
        py::arg("average"));
  m.def("describe_plan", &describe_plan, py::arg("layers"), py::arg("dtype"),
        "rounds -> shards -> chunks -> runs (offset, count, payload, bytes, exact).");
}

}  // namespace cgx
