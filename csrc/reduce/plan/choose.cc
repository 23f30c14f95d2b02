#include "reduce/plan/choose.h"

#include <algorithm>

#include "base/error.h"
#include "base/parameter.h"
#include "reduce/plan/header.h"

namespace cgx {
namespace {

// With more than two ranks one-shot sends (N - 1) instead of 2 (N - 1) / N messages' worth of
// bytes, but saves an exchange; below this many bytes leaving a rank the exchange is the larger
// cost (benchmarks/allreduce.py).
constexpr size_t kOneShotBytes = 256 * 1024;

// Up to here the root of a reduce combines all values itself: to share the work costs an exchange.
constexpr size_t kReduceAtRootBytes = 64 * 1024;

// Room for the contributions of one round of direct transfers, from all peers.
constexpr size_t kDirectRoom = size_t{8} << 20;
constexpr size_t kLeastDirectChunk = size_t{64} << 10;

bool all_exact(const std::vector<Layer>& layers) {
  return std::all_of(layers.begin(), layers.end(),
                     [](const Layer& layer) { return layer.codec == raw_codec(); });
}

// True if exact values may go directly: a checksum or a flag would need a message around them.
bool takes_direct(const EngineOptions& options, const Topology& topology) {
  return options.direct_from > 0 && !topology.two_levels() && !options.checksum &&
         options.nonfinite == NonFinite::kPropagate;
}

// True if one rank gets all of it when it is cut into chunks. Then all others send it one message
// each and get one, the fewest possible: the N (N - 1) of one-shot cost more CPU time than they
// save where a message costs a system call and a wake-up.
bool has_one_owner(const std::vector<Layer>& layers) {
  return layers.size() == 1 && layers.front().count <= layers.front().codec->granule();
}

// The space that plans of the algorithm are made in.
PlanSpace plan_space(const EngineOptions& options, const Topology& topology, Algorithm algorithm) {
  PlanSpace space{topology, options.intra, options.intra, options.intra_exact};
  const auto make_room = [&](Budget& budget) {
    if (!options.checksum) return;
    const size_t sums = kChecksumBytes * static_cast<size_t>(topology.size());
    for (size_t* bytes : {&budget.wanted, &budget.most, &budget.limit}) {
      *bytes -= std::min(*bytes, sums);
    }
  };
  if (algorithm == Algorithm::kDirect) {
    // No communicator buffers direct transfers; but contributions of all peers need memory.
    const auto ranks = static_cast<size_t>(topology.size());
    const size_t most = kDirectRoom / std::max<size_t>(ranks - 1, 1);
    const size_t round = ranks * std::min(options.direct_chunk, std::max(most, kLeastDirectChunk));
    space.cross = {round, round};
    return space;
  }
  make_room(space.intra);
  make_room(space.cross);
  if (topology.host_count() == 1) return space;
  const auto team =
      static_cast<size_t>(topology.two_levels() ? topology.host_count() : topology.size());
  const size_t messages = algorithm == Algorithm::kOneShot ? 1 : team;
  space.ramp = true;
  space.cross = {std::min(options.cross_bytes, options.segment_bytes * messages),
                 options.cross_bytes};
  make_room(space.cross);
  return space;
}

}  // namespace

Reduction reduction_of(const std::string& where, const std::string& name) {
  const Parameter names{.name = where, .kind = Parameter::Kind::kChoice, .choices = kReductions};
  const std::string known = canonical(names, where, name);
  if (known == "SRA") return Reduction::kScatterReduceAllGather;
  if (known == "ONESHOT") return Reduction::kOneShot;
  return known == "RING" ? Reduction::kRing : Reduction::kAuto;
}

Algorithm choose_algorithm(const EngineOptions& options, const Topology& topology,
                           const std::vector<Layer>& layers, DType dtype) {
  const bool across = topology.host_count() > 1;
  switch (across ? options.cross_reduction : options.intra_reduction) {
    case Reduction::kOneShot:
      return Algorithm::kOneShot;
    case Reduction::kScatterReduceAllGather:
      return Algorithm::kScatterReduceAllGather;
    case Reduction::kRing:
      return Algorithm::kRing;
    case Reduction::kAuto:
      break;
  }
  const bool two_levels = topology.two_levels();
  const auto team = static_cast<size_t>(two_levels ? topology.host_count() : topology.size());
  const auto teams = static_cast<size_t>(two_levels ? topology.teams() : 1);
  const size_t bytes = one_shot_payload_bytes(layers, dtype);
  if (takes_direct(options, topology) && all_exact(layers)) {
    if (bytes >= options.direct_from) return Algorithm::kDirect;
    if (team > 2 && has_one_owner(layers)) return Algorithm::kScatterReduceAllGather;
  }
  const size_t leaving = bytes / teams * (team - 1);
  if (leaving <= kOneShotBytes) return Algorithm::kOneShot;
  // One-shot leaves the contributions of all hosts to be handed on inside them, which costs more
  // than it saves where they are not compressed.
  return team <= 2 && (!all_exact(layers) || !two_levels) ? Algorithm::kOneShot
                                                          : Algorithm::kScatterReduceAllGather;
}

std::string why_algorithm(const EngineOptions& options, const Plan& plan,
                          const Topology& topology) {
  if (plan.operation == Operation::kReduce) {
    return plan.algorithm == Algorithm::kOneShot ? "the root combines two sides, or few values"
                                                 : "all ranks share the work";
  }
  if (plan.operation != Operation::kAllReduce) return "the only way";
  const bool across = topology.host_count() > 1;
  const Reduction asked = across ? options.cross_reduction : options.intra_reduction;
  const char* option = across ? "cross_reduction" : "inner_reduction";
  if (asked != Reduction::kAuto) return str_of("asked for by ", option);
  if (plan.algorithm == Algorithm::kDirect) {
    return str_of(option, "=AUTO: exact values, ", options.direct_from,
                  " bytes or more, over a communicator that takes them from the tensor");
  }
  const size_t team =
      static_cast<size_t>(topology.two_levels() ? topology.host_count() : topology.size());
  if (plan.algorithm == Algorithm::kOneShot) {
    return str_of(option, "=AUTO: ", team <= 2 ? "two sides, one rounding" : "a small message");
  }
  if (!plan.two_levels && has_one_owner(plan.layers)) {
    return str_of(option, "=AUTO: one rank sums so few values");
  }
  return str_of(option, "=AUTO: more than ", kOneShotBytes, " bytes would leave a rank at once");
}

std::shared_ptr<const Plan> make_all_reduce_plan(const EngineOptions& options,
                                                 const Topology& topology,
                                                 const std::vector<Layer>& layers, DType dtype,
                                                 Combine combine) {
  const Algorithm algorithm = choose_algorithm(options, topology, layers, dtype);
  const bool automatic = (topology.host_count() > 1 ? options.cross_reduction
                                                    : options.intra_reduction) == Reduction::kAuto;
  try {
    return plan_all_reduce(layers, dtype, algorithm, plan_space(options, topology, algorithm),
                           combine);
  } catch (const ConfigError&) {
    if (!automatic || algorithm != Algorithm::kOneShot) throw;
  }
  const Algorithm other = Algorithm::kScatterReduceAllGather;
  return plan_all_reduce(layers, dtype, other, plan_space(options, topology, other), combine);
}

std::shared_ptr<const Plan> make_reduce_plan(const EngineOptions& options, const Topology& topology,
                                             size_t values, DType dtype, Combine combine,
                                             int root) {
  const int sides = topology.two_levels() ? topology.host_count() : topology.size();
  const bool few = values * size_of(dtype) <= kReduceAtRootBytes;
  Algorithm algorithm =
      sides <= 2 || few ? Algorithm::kOneShot : Algorithm::kScatterReduceAllGather;
  const Reduction asked =
      topology.host_count() > 1 ? options.cross_reduction : options.intra_reduction;
  if (asked == Reduction::kOneShot) algorithm = Algorithm::kOneShot;
  if (asked == Reduction::kScatterReduceAllGather) algorithm = Algorithm::kScatterReduceAllGather;
  return plan_reduce(values, dtype, combine, root, algorithm,
                     plan_space(options, topology, algorithm));
}

std::shared_ptr<const Plan> make_shards_plan(const EngineOptions& options, const Topology& topology,
                                             Operation operation, size_t shard,
                                             const std::shared_ptr<const Codec>& codec, DType dtype,
                                             Combine combine) {
  // An all-gather sends one message to all.
  const Algorithm shape = operation == Operation::kAllGather && !topology.two_levels()
                              ? Algorithm::kOneShot
                              : Algorithm::kScatterReduceAllGather;
  return plan_shards(operation, shard, codec, dtype, plan_space(options, topology, shape), combine);
}

}  // namespace cgx
