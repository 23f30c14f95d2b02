#include "reduce/plan/rounds.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/messages.h"
#include "reduce/plan/cut.h"
#include "reduce/plan/exchanges.h"

namespace cgx {
namespace {

// `codec` asked for the bucket, of which there are `count` values; `as` is how it travels where it
// does not fit.
[[noreturn]] void bucket_too_big(const Codec& codec, const Codec& as, size_t count, size_t budget,
                                 DType dtype) {
  throw ConfigError(str_of(
      "one bucket of ", codec.granule(), " values (", codec.describe(), "), ",
      as.encoded_bytes(count, dtype), " bytes ", &as == raw_codec().get() ? "exact" : "encoded",
      ", does not fit into a message of ", budget,
      " bytes, which the communicator cannot make longer; use smaller buckets, or raise "
      "CGX_SHM_SEGMENT_KB"));
}

const Codec* intra_codec(const Codec* codec, const PlanSpace& space) {
  return space.intra_exact ? raw_codec().get() : codec;
}

// Bytes of a round beyond its payload, per chunk: a header, and padding per run. Cutting a round
// into chunks can split the run at each border in two, whose encodings may be one byte and one
// padding longer together.
constexpr size_t kChunkCost = Messages::kPayloadOffset + 2 * kRunAlignment;

size_t less(size_t budget, size_t cost) { return budget > cost ? budget - cost : 0; }

// The smallest payload to aim at: as much as the rest of the round's messages, if the communicator
// can grow. So a large world size does not lead to rounds of a few values.
size_t least_aim(const Budget& budget, size_t cost) { return budget.grows() ? cost : 0; }

// The first round has 1/kRamp of the aimed size, the next one twice as much, and so on; the last
// rounds shrink likewise. An aim below kSmallestRamp stays: smaller rounds cost more than they
// hide.
constexpr size_t kRamp = 4;
constexpr size_t kSmallestRamp = 64 * 1024;
// A tensor of many rounds has some twice as large in the middle: half as many messages, for the
// same share of it left at the ends.
constexpr size_t kManyRounds = 16;

// Cuts layers into rounds: collects runs until one of two budgets is full.
class RoundCutter {
 public:
  struct Limits {
    size_t cross;
    size_t intra;  // bytes of the values as they travel inside hosts
  };

  /// lone: of a single bucket.
  RoundCutter(Plan& plan, const PlanSpace& space, Limits wanted, Limits most, Limits lone)
      : plan_(plan), space_(space), aim_(wanted), lone_(lone), wanted_(wanted) {
    for (const Layer& layer : plan.layers) {
      left_ += kRunAlignment + layer.codec->encoded_bytes(layer.count, plan.dtype);
    }
    const bool stretch = !plan.two_levels && left_ / kManyRounds >= aim_.cross;
    longest_ = stretch ? std::min(2 * aim_.cross, most.cross) : aim_.cross;
    begin_round();
  }

  template <typename Close>
  void cut(const Close& close) {
    size_t offset = 0;
    for (const Layer& layer : plan_.layers) {
      for (size_t first = 0; first < layer.count;) {
        const Codec& codec = *layer.codec;
        const size_t rest = layer.count - first;
        size_t take = room_for(codec, rest, wanted_);
        if (take == 0 && runs_.empty()) {
          // A bucket larger than a pipelined segment: alone in its round.
          take = room_for(codec, std::min(rest, codec.granule()), lone_);
          if (take == 0) refuse(codec, std::min(rest, codec.granule()));
        }
        if (take == 0) {
          close_round(close);
          continue;
        }
        runs_.push_back(
            UnplacedRun{offset + first, take, &codec, layer.first.value_or(offset) + first});
        used_.cross += kRunAlignment + codec.encoded_bytes(take, plan_.dtype);
        used_.intra +=
            kRunAlignment + intra_codec(&codec, space_)->encoded_bytes(take, plan_.dtype);
        first += take;
        if (take < rest) close_round(close);
      }
      offset += layer.count;
    }
    close_round(close);
  }

 private:
  size_t room_for(const Codec& codec, size_t count, const Limits& limits) const {
    const size_t take = fitting(codec, codec.granule(), count,
                                less(limits.cross, used_.cross + kRunAlignment), plan_.dtype);
    if (!plan_.two_levels) return take;
    return fitting(*intra_codec(&codec, space_), codec.granule(), take,
                   less(limits.intra, used_.intra + kRunAlignment), plan_.dtype);
  }

  [[noreturn]] void refuse(const Codec& codec, size_t count) const {
    const size_t cross = less(lone_.cross, kRunAlignment);
    if (codec.encoded_bytes(count, plan_.dtype) > cross) {
      bucket_too_big(codec, codec, count, cross, plan_.dtype);
    }
    bucket_too_big(codec, *intra_codec(&codec, space_), count, less(lone_.intra, kRunAlignment),
                   plan_.dtype);
  }

  template <typename Close>
  void close_round(const Close& close) {
    if (!runs_.empty()) close(runs_);
    runs_.clear();
    left_ = less(left_, used_.cross);
    used_ = {0, 0};
    ++rounds_;
    begin_round();
  }

  void begin_round() {
    if (!space_.ramp || aim_.cross < kSmallestRamp) return;
    const size_t least = aim_.cross / kRamp;
    const size_t up = rounds_ < 8 ? least << rounds_ : longest_;
    const size_t down = std::max(least, left_ / 2);
    wanted_.cross = std::min({longest_, up, down});
    const double ratio = static_cast<double>(wanted_.cross) / static_cast<double>(aim_.cross);
    wanted_.intra = static_cast<size_t>(ratio * static_cast<double>(aim_.intra));
  }

  Plan& plan_;
  const PlanSpace& space_;
  const Limits aim_, lone_;
  Limits wanted_;  // of this round
  Limits used_{0, 0};
  size_t left_ = 0;  // encoded bytes that this round and later ones carry
  size_t longest_ = 0;
  size_t rounds_ = 0;
  std::vector<UnplacedRun> runs_;
};

std::vector<UnplacedRun> runs_of(const Chunk& chunk) {
  std::vector<UnplacedRun> runs;
  for (const Run& run : chunk.runs) runs.push_back({run.offset, run.count, run.codec, run.index});
  return runs;
}

void append_intra(Shard& shard, const PlanSpace& space, DType dtype) {
  for (const Chunk& chunk : shard.chunks) {
    for (const Run& run : chunk.runs) {
      append(shard.intra, {run.offset, run.count, intra_codec(run.codec, space), run.index}, dtype);
    }
  }
}

void cut_one_level(Plan& plan, const PlanSpace& space) {
  const int chunks = plan.algorithm == Algorithm::kOneShot ? 1 : plan.size;
  const size_t fixed = static_cast<size_t>(chunks) * kChunkCost;
  const size_t aim = std::max(less(space.cross.wanted, fixed), least_aim(space.cross, fixed));
  RoundCutter cutter(plan, space, {aim, 0}, {std::max(aim, less(space.cross.most, fixed)), 0},
                     {less(space.cross.limit, fixed), 0});
  cutter.cut([&](const std::vector<UnplacedRun>& runs) {
    Round round;
    round.shards.push_back({cut_evenly(runs, chunks, plan.dtype), {}});
    plan.rounds.push_back(std::move(round));
  });
}

// Exact values travel as they lie in the tensor, so layers do not matter. The plan has as few
// rounds as there is room for, of equal size: the link may rest while a sum is made, but every
// round costs each rank the same waits, however small it is. Measured by hand: docs/performance.md.
void cut_direct(Plan& plan, const PlanSpace& space) {
  for (const Layer& layer : plan.layers) {
    if (layer.codec != raw_codec()) throw Error("a direct plan has a compressed layer");
  }
  const size_t bytes = plan.values * size_of(plan.dtype);
  if (plan.size == 1 || bytes == 0) return;
  const size_t rounds = (bytes + space.cross.wanted - 1) / space.cross.wanted;
  const std::vector<UnplacedRun> whole = {{0, plan.values, raw_codec().get(), 0}};
  for (const Chunk& values : cut_evenly(whole, static_cast<int>(rounds), plan.dtype)) {
    Round round;
    round.shards.push_back({cut_evenly(runs_of(values), plan.size, plan.dtype), {}});
    plan.rounds.push_back(std::move(round));
  }
}

void cut_two_levels(Plan& plan, const PlanSpace& space) {
  const bool one_shot = plan.algorithm == Algorithm::kOneShot;
  const int hosts = space.topology.host_count(), teams = space.topology.teams();
  const int chunks = one_shot ? 1 : hosts;
  // A one-shot bundle holds the contributions of all hosts.
  const bool bundles = one_shot && plan.operation == Operation::kAllReduce;
  const size_t copies = bundles ? static_cast<size_t>(hosts) : 1;
  const size_t fixed = static_cast<size_t>(chunks * teams) * kChunkCost;
  auto refuse = [&](const UnplacedRun& run, const Exchanges& needed) {
    const bool inside = needed.intra > space.intra.limit;
    const Codec* as = inside ? intra_codec(run.codec, space) : run.codec;
    bucket_too_big(*run.codec, *as, run.count, inside ? space.intra.limit : space.cross.limit,
                   plan.dtype);
  };
  const size_t least_inside = least_aim(space.intra, fixed * copies);
  const size_t least_across = least_aim(space.cross, fixed);
  auto limits = [&](size_t cross, size_t intra) {
    return RoundCutter::Limits{std::min(cross, intra / copies), intra};
  };
  // A single bucket is one team's.
  const auto lone = limits(less(space.cross.limit, fixed), less(space.intra.limit, fixed * copies));
  for (size_t shrink = 1;; shrink *= 2) {
    plan.rounds.clear();
    bool good = true;
    const size_t inside = less(space.intra.wanted / shrink, fixed * copies);
    const size_t across = less(space.cross.wanted * static_cast<size_t>(teams) / shrink, fixed);
    const bool shrunk = inside <= least_inside && across <= least_across;
    const auto wanted = limits(std::max(across, least_across), std::max(inside, least_inside));
    RoundCutter cutter(plan, space, wanted, wanted, lone);
    cutter.cut([&](const std::vector<UnplacedRun>& runs) {
      Round round;
      for (const Chunk& values : cut_evenly(runs, teams, plan.dtype)) {
        Shard shard{cut_evenly(runs_of(values), chunks, plan.dtype), {}};
        append_intra(shard, space, plan.dtype);
        round.shards.push_back(std::move(shard));
      }
      // Cutting into shards and chunks is only about even.
      const Exchanges needed = exchanges_of(round, plan, hosts);
      const bool alone = runs.size() == 1 && runs.front().count <= runs.front().codec->granule();
      good = good && (needed.fit(space.cross.most, space.intra.most) ||
                      ((alone || shrunk) && needed.fit(space.cross.limit, space.intra.limit)));
      if (shrunk && !good) refuse(runs.front(), needed);
      plan.rounds.push_back(std::move(round));
    });
    if (good) return;
  }
}

// Values per shard and round, of `shard` ones; `copies` messages of it share an exchange.
size_t share(const Codec& codec, size_t granule, size_t left, const Budget& budget, size_t copies,
             DType dtype) {
  const size_t fixed = Messages::kPayloadOffset + kRunAlignment;
  const size_t aim = std::max(less(budget.wanted / copies, fixed), least_aim(budget, fixed));
  const size_t take = fitting(codec, granule, left, aim, dtype);
  if (take > 0) return take;
  const size_t lone = less(budget.limit / copies, fixed);
  return fitting(codec, granule, std::min(left, granule), lone, dtype);
}

// A run of a rank's shard.
UnplacedRun run_of(int rank, size_t shard, size_t first, size_t take, const Codec* codec) {
  const size_t offset = static_cast<size_t>(rank) * shard + first;
  return {offset, take, codec, offset};
}

Round shards_of_one_level(const Plan& plan, const Codec* codec, size_t shard, size_t first,
                          size_t take) {
  Shard all;
  for (int rank = 0; rank < plan.size; ++rank) {
    Chunk chunk;
    append(chunk, run_of(rank, shard, first, take, codec), plan.dtype);
    all.chunks.push_back(std::move(chunk));
  }
  Round round;
  round.shards.push_back(std::move(all));
  return round;
}

Round shards_of_two_levels(const Plan& plan, const PlanSpace& space, const Codec* codec,
                           size_t shard, size_t first, size_t take) {
  const Topology& topology = space.topology;
  Round round;
  for (int team = 0; team < topology.teams(); ++team) {
    Shard values;
    for (int host = 0; host < topology.host_count(); ++host) {
      Chunk chunk;
      for (int rank : topology.host(host)) {
        if (topology.team_of(rank) != team) continue;
        append(chunk, run_of(rank, shard, first, take, codec), plan.dtype);
      }
      values.chunks.push_back(std::move(chunk));
    }
    append_intra(values, space, plan.dtype);
    round.shards.push_back(std::move(values));
  }
  return round;
}

}  // namespace

void cut_layers(Plan& plan, const PlanSpace& space) {
  if (plan.algorithm == Algorithm::kDirect) {
    cut_direct(plan, space);
  } else if (plan.two_levels) {
    cut_two_levels(plan, space);
  } else if (plan.size > 1) {
    cut_one_level(plan, space);
  }
}

void cut_shards(Plan& plan, size_t shard, const Codec& codec, const PlanSpace& space) {
  // A reduce-scatter sends a message to every peer in one exchange, an all-gather the same one to
  // all; inside hosts, and where ranks serve others, up to all shards travel at once.
  const auto size = static_cast<size_t>(plan.size);
  const bool scatter = plan.operation == Operation::kReduceScatter;
  const size_t copies = scatter || plan.two_levels ? size : 1;
  for (size_t first = 0; plan.size > 1 && first < shard;) {
    size_t take = share(codec, codec.granule(), shard - first, space.cross, copies, plan.dtype);
    const size_t bucket = std::min(shard - first, codec.granule());
    if (take == 0) bucket_too_big(codec, codec, bucket, space.cross.limit / copies, plan.dtype);
    if (plan.two_levels) {
      // Inside hosts: contributions of a reduce-scatter as the group has them there, and its
      // results, which are exact; shards of an all-gather as they were encoded.
      const Codec* contributions = intra_codec(&codec, space);
      for (const Codec* intra :
           {scatter ? raw_codec().get() : &codec, scatter ? contributions : &codec}) {
        take = share(*intra, codec.granule(), take, space.intra, copies, plan.dtype);
        if (take == 0)
          bucket_too_big(codec, *intra, bucket, space.intra.limit / copies, plan.dtype);
      }
    }
    plan.rounds.push_back(plan.two_levels
                              ? shards_of_two_levels(plan, space, &codec, shard, first, take)
                              : shards_of_one_level(plan, &codec, shard, first, take));
    first += take;
  }
}

}  // namespace cgx
