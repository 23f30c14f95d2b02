#include <vector>

#include "reduce/schedule/arrivals.h"
#include "reduce/schedule/team_all_reduce.h"

namespace cgx {
namespace {

class ScatterReduceAllGather final : public TeamAllReduce {
 public:
  /// root: the rank of the team that gets the sums; -1: all do.
  ScatterReduceAllGather(Call& call, Channel& channel, int root)
      : call_(call), channel_(channel), root_(root) {}

  void announce(int stage, size_t round, const Shard& shard) override {
    for (int p : channel_.peers()) {
      if (stage == 1) channel_.will_receive(p, own(shard).payload_bytes, round == 0);
      if (stage == 2 && gathers()) channel_.will_receive(p, chunk(shard, p).payload_bytes, false);
    }
  }

  void run(int stage, const TeamRound& round) override {
    if (stage == 0) scatter(round);
    if (stage == 1) reduce(round);
    if (stage == 2 && gathers()) gather(round);
  }

 private:
  static const Chunk& chunk(const Shard& shard, int rank) {
    return shard.chunks[static_cast<size_t>(rank)];
  }
  const Chunk& own(const Shard& shard) const { return chunk(shard, channel_.rank()); }

  bool gathers() const { return root_ < 0 || channel_.rank() == root_; }

  // Memory for the own sum; null on the root, which keeps it.
  std::byte* open_sum(const Chunk& mine) {
    if (root_ < 0) return channel_.open_broadcast(mine.payload_bytes);
    if (channel_.rank() == root_) return nullptr;
    bytes_.assign(static_cast<size_t>(channel_.size()), 0);
    bytes_[static_cast<size_t>(root_)] = mine.payload_bytes;
    return channel_.open(bytes_)[static_cast<size_t>(root_)];
  }

  // Sends to every owner this rank's contribution to its chunk.
  void scatter(const TeamRound& round) {
    bytes_.assign(static_cast<size_t>(channel_.size()), 0);
    for (int p : channel_.peers()) {
      bytes_[static_cast<size_t>(p)] = chunk(*round.shard, p).payload_bytes;
    }
    const std::vector<std::byte*>& messages = channel_.open(bytes_);
    outgoing_.clear();
    for (int p : channel_.peers()) {
      std::byte* message = messages[static_cast<size_t>(p)];
      if (message != nullptr) outgoing_.push_back({&chunk(*round.shard, p), message});
    }
    call_.stages.encode(call_, outgoing_, round.source, Stage::kContribution);
    channel_.post(round.number);
  }

  // Sums the own chunk and sends the sum to all, or to the root.
  void reduce(const TeamRound& round) {
    const Chunk& mine = own(*round.shard);
    if (mine.empty()) return channel_.post_nothing(round.number, true);
    payloads_.assign(static_cast<size_t>(channel_.size()), nullptr);  // nullptr: own values
    for (int p : channel_.sources()) {
      payloads_[static_cast<size_t>(p)] = channel_.receive(p, round.number);
    }
    std::byte* message = open_sum(mine);
    call_.stages.sum(
        call_, mine,
        {payloads_, round.source, gathers() ? round.output : View{}, message, call_.divisor(),
         /*final=*/true, /*own_index=*/-1, Feedback::kSet});
    round.put_in_bundle(call_.stages, static_cast<size_t>(channel_.rank()), message);
    for (int p : channel_.peers()) channel_.release(p);
    if (message != nullptr) channel_.post(round.number);
  }

  // Takes the sums of all other owners.
  void gather(const TeamRound& round) {
    decode_arrivals(
        call_, channel_, channel_.sources(), round.number, round.output,
        [&](int p) -> const Chunk& { return chunk(*round.shard, p); },
        [&](int p, const std::byte* payload) {
          if (payload != nullptr) {
            round.put_in_bundle(call_.stages, static_cast<size_t>(p), payload);
          }
        });
  }

  Call& call_;
  Channel& channel_;
  const int root_;
  std::vector<size_t> bytes_;
  std::vector<const std::byte*> payloads_;
  std::vector<ChunkToSend> outgoing_;
};

}  // namespace

const TeamAlgorithm kScatterReduceAllGatherTeam = {
    Algorithm::kScatterReduceAllGather,
    [](Call& call, Channel& channel) -> std::unique_ptr<TeamAllReduce> {
      return std::make_unique<ScatterReduceAllGather>(call, channel, -1);
    },
    [](int) { return 3; },
    // Each of two rounds has a message of both kinds under way.
    [](int, int in_flight) -> size_t { return in_flight >= 4 ? 3 : 1; }};

const TeamAlgorithm kReduceByAllTeam = {
    Algorithm::kScatterReduceAllGather,
    [](Call& call, Channel& channel) -> std::unique_ptr<TeamAllReduce> {
      return std::make_unique<ScatterReduceAllGather>(call, channel, team_root(call));
    },
    kScatterReduceAllGatherTeam.stages, kScatterReduceAllGatherTeam.depth};

}  // namespace cgx
