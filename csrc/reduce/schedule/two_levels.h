// Shared by the reductions with two levels: this rank's position in both levels, and the channels.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "reduce/schedule/channel.h"
#include "reduce/schedule/pipeline.h"
#include "reduce/schedule/reducer.h"
#include "reduce/schedule/stages.h"

namespace cgx {

/// Exchanges that a communicator between hosts takes at once, at least; the engine checks it. Ranks
/// that are in no team must know how many rounds the others have under way.
inline constexpr int kCrossInFlight = 4;

class TwoLevels {
 public:
  explicit TwoLevels(Call& call);

  const int host;                  // number of this rank's host
  const int local;                 // number of this rank on it
  const bool member;               // of team number `local`
  const size_t hosts;              // all of them
  std::vector<int> locals;         // the other ranks of this host, by their local number
  std::vector<int> other_members;  // the locals that are in a team
  std::optional<Channel> intra;    // if this host has several ranks
  std::optional<Channel> cross;    // if this rank is in a team

  const Round& round(size_t number) const { return call_.plan.rounds[number]; }
  const Shard& shard(size_t number, int team) const {
    return round(number).shards[static_cast<size_t>(team)];
  }

  void begin();

  /// Announces the messages that scatter_inside() receives.
  void announce_scatter(size_t number);
  /// Sends the values of every shard to the member of its team on this host; on members, sums those
  /// of the own shard over the host, in the order of ranks, to `partial`.
  void scatter_inside(size_t number, const View& input, const View& partial);

 private:
  Call& call_;
  std::vector<size_t> bytes_;
  std::vector<const std::byte*> payloads_;
  std::vector<ChunkToSend> outgoing_;
};

}  // namespace cgx
