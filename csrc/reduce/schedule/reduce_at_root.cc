#include <vector>

#include "reduce/schedule/team_all_reduce.h"

namespace cgx {
namespace {

// Every rank sends its values to the root, which combines them in rank order.
class ReduceAtRoot final : public TeamAllReduce {
 public:
  ReduceAtRoot(Call& call, Channel& channel)
      : call_(call), channel_(channel), root_(team_root(call)) {}

  void announce(int stage, size_t round, const Shard& shard) override {
    if (stage != 1 || channel_.rank() != root_) return;
    for (int p : channel_.peers()) {
      channel_.will_receive(p, shard.chunks.front().payload_bytes, round == 0);
    }
  }

  void run(int stage, const TeamRound& round) override {
    const Chunk& chunk = round.shard->chunks.front();
    const bool receives = channel_.rank() == root_;
    if (chunk.empty() || receives != (stage == 1)) return;
    if (stage == 0) {
      bytes_.assign(static_cast<size_t>(channel_.size()), 0);
      bytes_[static_cast<size_t>(root_)] = chunk.payload_bytes;
      std::byte* message = channel_.open(bytes_)[static_cast<size_t>(root_)];
      call_.stages.encode_chunk(call_, chunk, round.source, Stage::kContribution, message);
      return channel_.post(round.number);
    }
    payloads_.assign(static_cast<size_t>(channel_.size()), nullptr);  // nullptr: own values
    for (int p : channel_.sources()) {
      payloads_[static_cast<size_t>(p)] = channel_.receive(p, round.number);
    }
    call_.stages.sum(call_, chunk,
                     {payloads_, round.source, round.output, nullptr, call_.divisor()});
    for (int p : channel_.peers()) channel_.release(p);
  }

 private:
  Call& call_;
  Channel& channel_;
  const int root_;
  std::vector<size_t> bytes_;
  std::vector<const std::byte*> payloads_;
};

}  // namespace

const TeamAlgorithm kReduceAtRootTeam = {
    Algorithm::kOneShot,
    [](Call& call, Channel& channel) -> std::unique_ptr<TeamAllReduce> {
      return std::make_unique<ReduceAtRoot>(call, channel);
    },
    [](int) { return 2; }, [](int, int in_flight) -> size_t { return in_flight > 2 ? 2 : 1; }};

}  // namespace cgx
