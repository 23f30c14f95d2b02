#include "bindings/simulate.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/process_group_cgx.h"
#include "base/error.h"
#include "bindings/simulation.h"
#include "reduce/plan/choose.h"
#include "reduce/plan/cost.h"
#include "tensors/memory.h"

namespace py = pybind11;

namespace cgx {
namespace {

// The keyword arguments of simulate_all_reduce() that say what the engine of a group with these
// options does with tensors of the host. The algorithm is the caller's.
py::dict simulated_group(const std::vector<std::string>& hosts,
                         const c10::intrusive_ptr<GroupOptions>& options) {
  GroupConfig config = for_host(resolve_group(options ? options->fields : OptionFields()));
  config.intra_reduction = config.cross_reduction = "AUTO";
  const EngineOptions engine = engine_options(config, Topology(hosts, config.leader_only));
  return py::dict(
      py::arg("hosts") = hosts, py::arg("leader_only") = config.leader_only,
      py::arg("inner_exact") = engine.intra_exact, py::arg("slot_bytes") = engine.intra.wanted,
      py::arg("inner_bytes") = engine.intra.most, py::arg("segment_bytes") = engine.segment_bytes,
      py::arg("cross_bytes") = engine.cross_bytes, py::arg("direct_from") = engine.direct_from);
}

// The memory of each rank's tensor. They have one type, which codecs take, and `values` values.
std::vector<Residual> memory_of(const char* what, const std::vector<at::Tensor>& tensors,
                                size_t values) {
  std::vector<Residual> memory;
  for (const at::Tensor& tensor : tensors) {
    const std::string one = str_of(what, '[', memory.size(), ']');
    const auto type = codec_type(tensor.scalar_type());
    TORCH_CHECK_TYPE(type && (memory.empty() || *type == memory.front().dtype), one, " is ",
                     tensor.scalar_type(),
                     ", allowed: float32, float16, bfloat16, the same on all ranks");
    TORCH_CHECK_VALUE(static_cast<size_t>(tensor.numel()) == values, one, " has ", tensor.numel(),
                      " values, allowed: ", values);
    memory.push_back({host_bytes(one.c_str(), tensor, size_of(*type), 0, values), *type});
  }
  return memory;
}

// All-reduces the tensors in place; residuals are read and written. The caller holds both.
py::dict simulate_all_reduce_py(const std::vector<at::Tensor>& data, const LayerRequests& requests,
                                bool average, const std::vector<at::Tensor>& residuals,
                                const py::kwargs& described) {
  TORCH_CHECK_VALUE(!data.empty(), "data is empty, allowed: a tensor for each rank");
  const auto values = static_cast<size_t>(data.front().numel());
  const std::vector<Residual> inputs = memory_of("data", data, values);
  const std::vector<Residual> feedback = memory_of("residuals", residuals, values);
  std::vector<void*> pointers;
  for (const Residual& input : inputs) pointers.push_back(input.data);
  const std::vector<Layer> layers = layers_of(requests);
  check_total(layers, values);
  for (size_t rank = 0; rank < residuals.size(); ++rank) {
    const auto shares = [&](const at::Tensor& other) {
      return share_memory(residuals[rank], other);
    };
    TORCH_CHECK_VALUE(std::none_of(data.begin(), data.end(), shares) &&
                          std::none_of(residuals.begin() + rank + 1, residuals.end(), shares),
                      "residuals[", rank, "] shares memory with a tensor or another residual, ",
                      "allowed: memory of its own");
  }
  const SimulatedGroup group = group_of(described);
  SimulationResult result;
  {
    py::gil_scoped_release no_gil;
    result = simulate_all_reduce(group, pointers, inputs.front().dtype, layers, average, feedback);
  }
  for (const at::Tensor& residual : residuals) {
    if (!residual.is_inference()) residual.unsafeGetTensorImpl()->bump_version();
  }
  return to_dict(result);
}

// Seconds of an all-reduce between hosts, and what it takes. link: latency, seconds per byte of the
// link of a host, a core's seconds per byte. codec: seconds per value, encoding and decoding.
// flat: one ring over all ranks, as of Gloo; then one rank of each host sends over its link, else
// one of each team.
py::dict predict_all_reduce(const LayerRequests& requests, int dtype,
                            const std::tuple<double, double, double>& link,
                            const std::pair<double, double>& codec, bool flat,
                            const py::kwargs& described) {
  SimulatedGroup group = group_of(described);
  if (flat) {
    std::vector<std::string> labels;
    for (int rank = 0; rank < group.topology.size(); ++rank) labels.push_back(std::to_string(rank));
    group.topology = Topology(labels);
    group.options.cross_reduction = Reduction::kRing;
  }
  const double senders = group.topology.two_levels() ? group.topology.teams() : 1;
  const auto plan =
      make_all_reduce_plan(group.options, group.topology, layers_of(requests), dtype_of(dtype));
  const auto [latency, seconds_per_byte, work_per_byte] = link;
  const Link model{latency, senders * seconds_per_byte, work_per_byte};
  const CodecSpeed speed{codec.first, codec.second};
  const PlanCost cost = cost_of(*plan, group.topology);
  const Work work = work_of(model, cost, speed);
  return py::dict(py::arg("seconds") = predict(model, cost, speed),
                  py::arg("host_bytes") = senders * cost.bytes, py::arg("wire") = work.wire,
                  py::arg("processor") = work.processor);
}

}  // namespace

void bind_simulate(py::module_& m) {
  m.def("simulated_group", &simulated_group, py::arg("hosts"), py::arg("options") = py::none());
  m.def("simulate_all_reduce", &simulate_all_reduce_py, py::arg("data"), py::arg("layers"),
        py::arg("average"), py::arg("residuals") = std::vector<at::Tensor>());
  m.def("predict_all_reduce", &predict_all_reduce, py::arg("layers"), py::arg("dtype"),
        py::arg("link"), py::arg("codec"), py::arg("flat"));
}

}  // namespace cgx
