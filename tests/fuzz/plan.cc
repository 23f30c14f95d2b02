#include "reduce/plan.h"

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
    for (const Segment& segment : plan.segments) {
      for (size_t i = 0; i < segment.count; ++i) segment_of_.push_back(starts_.size());
      starts_.push_back(start);
      start += segment.count;
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
    CHECK(round.shards.size() ==
          static_cast<size_t>(plan_.two_levels ? space_.topology.teams() : 1));
    size_t inside = 0;
    for (const Shard& shard : round.shards) {
      size_t across = 0, values = 0, longest = 0;
      for (const Chunk& chunk : shard.chunks) {
        check_chunk(chunk, true);
        across += chunk.message_bytes();
        longest = std::max(longest, chunk.message_bytes());
        values += chunk.values;
      }
      // An all-gather sends one chunk per exchange.
      const bool gather = plan_.operation == Operation::kAllGather && !plan_.two_levels;
      CHECK((gather ? longest : across) <= space_.cross.most, across, " bytes across");
      if (!plan_.two_levels) continue;
      check_chunk(shard.inner, false);
      CHECK(shard.inner.values == values);
      inside += shard.inner.message_bytes();
      CHECK(Communicator::kPayloadOffset + bundle_bytes(shard, space_.topology.host_count()) <=
            space_.inner.most);
    }
    CHECK(inside <= space_.inner.most, inside, " bytes inside");
  }

  // `own`: not the copy of the values for inside a host.
  void check_chunk(const Chunk& chunk, bool own) {
    size_t end = 0, packed = 0;
    for (const Piece& piece : chunk.pieces) {
      CHECK(piece.count > 0 && piece.offset + piece.count <= plan_.values);
      CHECK(piece.payload >= end && piece.payload % kPieceAlignment == 0);
      CHECK(piece.packed == packed);
      CHECK(piece.bytes == piece.codec->encoded_bytes(piece.count, plan_.dtype));
      packed += piece.count;
      end = piece.payload + piece.bytes;
      const size_t segment = segment_of_[piece.offset];
      const Codec& codec = *plan_.segments[segment].codec;
      CHECK(segment_of_[piece.offset + piece.count - 1] == segment);
      // Codes depend on buckets counted from the segment's start.
      CHECK((piece.offset - starts_[segment]) % codec.granule() == 0);
      CHECK(!own || piece.codec == &codec);
      for (size_t i = 0; own && i < piece.count; ++i) ++seen_[piece.offset + i];
    }
    CHECK(chunk.values == packed && chunk.payload_bytes == end);
  }

  const Plan& plan_;
  const PlanSpace& space_;
  std::vector<size_t> starts_, segment_of_;
  std::vector<uint8_t> seen_;
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
  const PlanSpace space{take_topology(input), take_budget(input), take_budget(input), input.flip()};
  const DType dtype = take_dtype(input);
  const auto algorithm = static_cast<Algorithm>(1 + input.below(3));
  const size_t kind = input.below(4);
  const size_t shard = input.below(2000);
  const auto codec = take_codec(input);
  const auto segments = take_segments(input, 6, 6000);
  auto build = [&] {
    if (kind >= 2) return plan_all_reduce(segments, dtype, algorithm, space);
    const auto operation = kind == 0 ? Operation::kReduceScatter : Operation::kAllGather;
    return plan_shards(operation, shard, codec, dtype, space);
  };
  try {
    const auto plan = build();
    Checker(*plan, space).run();
    CHECK(build()->hash == plan->hash);
    if (kind >= 2 && !segments.empty()) {
      // A rank that means something else has another hash.
      auto others = segments;
      others.back().codec = others.back().codec == raw_codec() ? make_codec({}) : raw_codec();
      PlanSpace roomy = space;
      roomy.cross.most += 1 << 20;
      roomy.inner.most += 1 << 20;
      CHECK(plan_all_reduce(others, dtype, algorithm, roomy)->hash != plan->hash);
    }
  } catch (const ConfigError& error) {
    CHECK(contains(error.what(), "does not fit"), error.what());
  }
}

}  // namespace cgx::native
