#include "reduce/plan/plan.h"

#include <string>

#include "base/error.h"
#include "check.h"
#include "comm/communicator.h"
#include "specs.h"

namespace cgx::native {
namespace {

class Checker {
 public:
  Checker(const Plan& plan, const PlanSpace& space)
      : plan_(plan), space_(space), seen_(plan.values, 0) {
    size_t start = 0;
    for (const Layer& layer : plan.layers) {
      for (size_t i = 0; i < layer.count; ++i) layer_of_.push_back(starts_.size());
      starts_.push_back(start);
      start += layer.count;
    }
    CHECK(start == plan.values);
  }

  void run() {
    for (const Round& round : plan_.rounds) check_round(round);
    for (size_t i = 0; i < seen_.size(); ++i) {
      CHECK(seen_[i] == (plan_.size > 1 ? 1 : 0), "value ", i, " is in ", int{seen_[i]},
            " messages");
    }
  }

 private:
  void check_round(const Round& round) {
    alone_ = is_alone(round);
    CHECK(round.shards.size() ==
          static_cast<size_t>(plan_.two_levels ? space_.topology.teams() : 1));
    for (const Shard& shard : round.shards) {
      size_t values = 0;
      for (const Chunk& chunk : shard.chunks) {
        check_chunk(chunk, true);
        values += chunk.values;
      }
      if (plan_.two_levels) {
        check_chunk(shard.intra, false);
        CHECK(shard.intra.values == values);
      }
      check_across(shard, may_grow(round, encoded_payload));
      const bool inside = may_grow(round, [&](const Shard& one) { return handed_on_payload(one); });
      for (int host = 0; plan_.two_levels && host < space_.topology.host_count(); ++host) {
        if (space_.topology.host(host).size() > 1) check_handed_on(shard, host, inside);
      }
    }
    if (plan_.two_levels && plan_.operation != Operation::kAllGather) check_scatter(round);
  }

  // Only a single bucket (of each shard) takes more than the communicators have memory for.
  bool is_alone(const Round& round) const {
    size_t runs = 0;
    for (const Shard& shard : round.shards) {
      for (const Chunk& chunk : shard.chunks) {
        for (const Run& run : chunk.runs) {
          ++runs;
          if (run.count > run.codec->granule()) return false;
        }
      }
    }
    return plan_.operation != Operation::kAllReduce || runs == 1;
  }

  // And what is no longer than its headers. payload: bytes of a shard's messages as they travel in
  // the exchange in question.
  template <typename Payload>
  bool may_grow(const Round& round, const Payload& payload) const {
    constexpr size_t kCost = Communicator::kPayloadOffset + 2 * kRunAlignment;
    size_t messages = 0, bytes = 0;  // a message of shards may hold the values of many ranks
    for (const Shard& shard : round.shards) {
      bytes += payload(shard);
      for (const Chunk& chunk : shard.chunks) {
        messages += plan_.operation == Operation::kAllReduce ? 1 : chunk.runs.size();
      }
    }
    return alone_ || bytes <= messages * kCost * static_cast<size_t>(space_.topology.host_count());
  }

  static size_t encoded_payload(const Shard& shard) {
    size_t bytes = 0;
    for (const Chunk& chunk : shard.chunks) bytes += chunk.payload_bytes;
    return bytes;
  }

  // Results of a reduce-scatter are exact inside hosts, which may be fewer bytes than encoded ones.
  size_t handed_on_payload(const Shard& shard) const {
    if (plan_.operation != Operation::kReduceScatter) return encoded_payload(shard);
    return shard.intra.values * size_of(plan_.dtype);
  }

  static size_t contributed_payload(const Shard& shard) { return shard.intra.payload_bytes; }

  static void check_fits(size_t bytes, const Budget& budget, bool may_grow, const char* what) {
    CHECK(bytes <= (may_grow ? budget.limit : budget.most), what, ": ", bytes,
          " bytes in an exchange of ", budget.most, ", at most ", budget.limit);
  }

  // What one rank sends to the others of its team (of the group, with one level) at once: a message
  // to each, or the same one to all.
  void check_across(const Shard& shard, bool may_grow) {
    size_t sum = 0, least = ~size_t{0}, longest = 0;
    for (const Chunk& chunk : shard.chunks) {
      sum += chunk.message_bytes();
      least = std::min(least, chunk.message_bytes());
      longest = std::max(longest, chunk.message_bytes());
    }
    const bool one = plan_.operation == Operation::kAllGather || shard.chunks.size() == 1 ||
                     plan_.algorithm == Algorithm::kRing;
    check_fits(one ? longest : sum - least, space_.cross, may_grow, "across");
  }

  // What the member of a team gives the other ranks of its host.
  void check_handed_on(const Shard& shard, int host, bool may_grow) {
    constexpr size_t kHeader = Communicator::kPayloadOffset;
    const auto number = static_cast<size_t>(host);
    if (plan_.operation == Operation::kAllReduce) {
      check_fits(kHeader + bundle_bytes(shard, space_.topology.host_count()), space_.intra,
                 may_grow, "result");
    } else if (plan_.operation == Operation::kReduceScatter) {
      size_t bytes = 0;
      for (const Run& run : shard.chunks[number].runs) {
        if (run.packed > 0) bytes += kHeader + run.count * size_of(plan_.dtype);
      }
      check_fits(bytes, space_.intra, may_grow, "shards");
    } else {
      size_t foreign = kHeader;
      for (size_t h = 0; h < shard.chunks.size(); ++h) {
        if (h != number) foreign += bundle_stride(shard.chunks[h]);
      }
      check_fits(foreign, space_.intra, may_grow, "shards of other hosts");
      for (const Run& run : shard.chunks[number].runs) {
        check_fits(kHeader + run.bytes, space_.intra, may_grow, "own shard");
      }
    }
  }

  // What a rank sends to the members of all teams on its host; there need not be one among them
  // that is itself.
  void check_scatter(const Round& round) {
    size_t sum = 0, least = ~size_t{0};
    bool all_members = true;
    for (int host = 0; host < space_.topology.host_count(); ++host) {
      const auto ranks = space_.topology.host(host).size();
      all_members = all_members && ranks <= static_cast<size_t>(space_.topology.teams());
    }
    for (const Shard& shard : round.shards) {
      sum += shard.intra.message_bytes();
      least = std::min(least, shard.intra.message_bytes());
    }
    check_fits(all_members ? sum - least : sum, space_.intra, may_grow(round, contributed_payload),
               "contributions inside");
  }

  // `own`: not the copy of the values for inside a host.
  void check_chunk(const Chunk& chunk, bool own) {
    size_t end = 0, packed = 0;
    for (const Run& run : chunk.runs) {
      CHECK(run.count > 0 && run.offset + run.count <= plan_.values);
      CHECK(run.payload >= end && run.payload % kRunAlignment == 0);
      CHECK(run.packed == packed);
      CHECK(run.bytes == run.codec->encoded_bytes(run.count, plan_.dtype));
      packed += run.count;
      end = run.payload + run.bytes;
      const size_t layer = layer_of_[run.offset];
      const Codec& codec = *plan_.layers[layer].codec;
      CHECK(layer_of_[run.offset + run.count - 1] == layer);
      // Codes depend on buckets counted from the layer's start.
      CHECK((run.offset - starts_[layer]) % codec.granule() == 0);
      CHECK(!own || run.codec == &codec);
      for (size_t i = 0; own && i < run.count; ++i) ++seen_[run.offset + i];
    }
    CHECK(chunk.values == packed && chunk.payload_bytes == end);
  }

  const Plan& plan_;
  const PlanSpace& space_;
  std::vector<size_t> starts_, layer_of_;
  std::vector<uint8_t> seen_;
  bool alone_ = false;  // the round that is looked at, of a single bucket
};

Topology take_topology(Input& input) {
  std::vector<std::string> hosts(1 + input.below(7));
  for (std::string& host : hosts) host = std::string(1, static_cast<char>('a' + input.below(4)));
  return Topology(hosts, input.below(4) == 0);
}

Budget take_budget(Input& input) {
  Budget budget;
  budget.most = input.below(input.flip() ? 2000 : 100000);
  budget.wanted = input.flip() ? budget.most : input.below(budget.most + 1);
  return budget;
}

}  // namespace

void fuzz_plan(const uint8_t* data, size_t size) {
  Input input(data, size);
  PlanSpace space{take_topology(input), take_budget(input), take_budget(input), input.flip()};
  const DType dtype = take_dtype(input);
  const auto algorithm = static_cast<Algorithm>(1 + input.below(3));
  const size_t kind = input.below(4);
  const size_t shard = input.below(2000);
  const auto codec = take_codec(input);
  const auto layers = take_layers(input, 6, 6000);
  for (Budget* budget : {&space.cross, &space.intra}) {
    budget->limit = input.flip() ? kNoLimit : budget->most;
  }
  auto build = [&] {
    if (kind >= 2) return plan_all_reduce(layers, dtype, algorithm, space);
    const auto operation = kind == 0 ? Operation::kReduceScatter : Operation::kAllGather;
    return plan_shards(operation, shard, codec, dtype, space);
  };
  try {
    const auto plan = build();
    Checker(*plan, space).run();
    CHECK(build()->hash == plan->hash);
    if (kind >= 2 && !layers.empty()) {
      // A rank that means something else has another hash.
      auto others = layers;
      others.back().codec = others.back().codec == raw_codec() ? make_codec("maxmin") : raw_codec();
      PlanSpace roomy = space;
      roomy.cross.limit = roomy.intra.limit = kNoLimit;
      CHECK(plan_all_reduce(others, dtype, algorithm, roomy)->hash != plan->hash);
    }
  } catch (const ConfigError& error) {
    CHECK(contains(error.what(), "does not fit"), error.what());
    CHECK(!space.cross.grows() || (space.topology.two_levels() && !space.intra.grows()),
          "communicators that make room refuse nothing: ", error.what());
  }
}

}  // namespace cgx::native
