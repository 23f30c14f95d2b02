#include "bindings/simulation.h"

#include <pybind11/stl.h>

#include <string>

#include "reduce/plan/choose.h"

namespace py = pybind11;

namespace cgx {
namespace {

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
    case Algorithm::kPairwise:
      return "pairwise";
    case Algorithm::kTree:
      return "tree";
  }
  return "unknown";
}

}  // namespace

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

std::vector<Layer> layers_of(const LayerRequests& requests) {
  std::vector<Layer> layers;
  for (const auto& [numel, codec] : requests) {
    layers.push_back({numel, codec ? codec->codec : raw_codec()});
  }
  return layers;
}

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

py::dict to_dict(const SimulationResult& result) {
  py::list stats;
  for (const StatsSnapshot& one : result.stats) stats.append(to_dict(one));
  py::dict out;
  out["algorithm"] = text_of(result.algorithm);
  out["stats"] = stats;
  return out;
}

}  // namespace cgx
