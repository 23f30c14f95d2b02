// The all-reduce of one team, or its reduce to a root, in stages, so that several rounds can be
// pending at once.
//
// Stage s of a round posts at most one exchange and receives what stage s - 1 of the other ranks
// has posted. Every rank runs the stages of all rounds in the same order.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/error.h"
#include "reduce/schedule/channel.h"
#include "reduce/schedule/stages.h"

namespace cgx {

/// The share of one round that a team reduces.
struct TeamRound {
  size_t number = 0;
  const Shard* shard = nullptr;
  View source;  // this rank's contribution
  View output;  // gets the result; may be where the source is; of a reduce: the root's alone
  /// If not null: gets the encoded result (plan.h, bundle_bytes).
  std::byte* bundle = nullptr;

  /// Copies the payload of a chunk to its place in the bundle, if there is one.
  void put_in_bundle(Stages& stages, size_t index, const std::byte* payload) const {
    if (bundle == nullptr) return;
    const std::vector<Chunk>& chunks = shard->chunks;
    const bool alike = chunks.size() == 1;  // one-shot: the contributions of all ranks
    size_t place = alike ? index * bundle_stride(chunks.front()) : 0;
    for (size_t i = 0; !alike && i < index; ++i) place += bundle_stride(chunks[i]);
    stages.copy(bundle + place, payload, chunks[alike ? 0 : index].payload_bytes);
  }
};

class TeamAllReduce {
 public:
  virtual ~TeamAllReduce() = default;

  /// Tells the channel what run(stage) of a round will receive.
  virtual void announce(int stage, size_t round, const Shard& shard) = 0;
  /// After the last stage of a round, output and bundle are complete.
  virtual void run(int stage, const TeamRound& round) = 0;
};

/// What is known of an algorithm before a team exists: ranks that are in none follow its stages, too.
struct TeamAlgorithm {
  Algorithm algorithm;
  /// `call` and `channel` must outlive the result.
  std::unique_ptr<TeamAllReduce> (*make)(Call& call, Channel& channel);
  /// Stages of a round in a team of `size` ranks.
  int (*stages)(int size);
  /// Rounds that may be under way over a communicator that takes `in_flight` exchanges at once.
  size_t (*depth)(int size, int in_flight);
};

// Each beside its implementation.
extern const TeamAlgorithm kOneShotTeam;
extern const TeamAlgorithm kScatterReduceAllGatherTeam;
extern const TeamAlgorithm kRingTeam;
// To the root: it combines all, or every rank does a chunk.
extern const TeamAlgorithm kReduceAtRootTeam;
extern const TeamAlgorithm kReduceByAllTeam;

/// Not for kDirect, which knows no teams.
inline const TeamAlgorithm& team_algorithm(Algorithm algorithm) {
  for (const TeamAlgorithm* one : {&kOneShotTeam, &kScatterReduceAllGatherTeam, &kRingTeam}) {
    if (one->algorithm == algorithm) return *one;
  }
  throw Error("unknown algorithm");
}

inline const TeamAlgorithm& reduce_team_algorithm(Algorithm algorithm) {
  return algorithm == Algorithm::kOneShot ? kReduceAtRootTeam : kReduceByAllTeam;
}

/// The root of a call's reduce, as its team counts: by ranks, or with two levels by hosts.
inline int team_root(const Call& call) {
  return call.plan.two_levels ? call.topology.host_of(call.plan.root) : call.plan.root;
}

}  // namespace cgx
