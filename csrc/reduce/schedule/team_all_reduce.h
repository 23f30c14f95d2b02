// The all-reduce of one team in stages, so that several rounds can be pending at once.
//
// Stage s of a round posts at most one exchange and receives what stage s - 1 of the other ranks
// has posted. Every rank runs the stages of all rounds in the same order.
#pragma once

#include <cstddef>
#include <memory>

#include "reduce/schedule/channel.h"
#include "reduce/schedule/stages.h"

namespace cgx {

/// The share of one round that a team reduces.
struct TeamRound {
  size_t number = 0;
  const Shard* shard = nullptr;
  View source;  // this rank's contribution
  View output;  // gets the result; may be where the source is
  /// If not null: gets the encoded result (plan.h, bundle_bytes).
  std::byte* bundle = nullptr;
};

class TeamAllReduce {
 public:
  virtual ~TeamAllReduce() = default;

  /// Tells the channel what run(stage) of a round will receive.
  virtual void announce(int stage, size_t round, const Shard& shard) = 0;
  /// After the last stage of a round, output and bundle are complete.
  virtual void run(int stage, const TeamRound& round) = 0;
};

/// Stages of a round in a team of `size` ranks.
int team_stages(Algorithm algorithm, int size);
/// How many rounds may be under way over a communicator that takes `in_flight` exchanges at once.
size_t team_depth(Algorithm algorithm, int size, int in_flight);

/// `call` and `channel` must outlive the result.
std::unique_ptr<TeamAllReduce> make_team_all_reduce(Algorithm algorithm, Call& call,
                                                    Channel& channel);

std::unique_ptr<TeamAllReduce> make_one_shot(Call& call, Channel& channel);
std::unique_ptr<TeamAllReduce> make_scatter_reduce_all_gather(Call& call, Channel& channel);
std::unique_ptr<TeamAllReduce> make_ring(Call& call, Channel& channel);

/// Copies the payload of a chunk to its place in a bundle.
void put_in_bundle(Call& call, const TeamRound& round, size_t index, const std::byte* payload);

}  // namespace cgx
