#include <vector>

#include "reduce/schedule/team_all_reduce.h"

namespace cgx {
namespace {

// Rounds under way at once, at most.
constexpr size_t kMostRounds = 3;

class OneShot final : public TeamAllReduce {
 public:
  OneShot(Call& call, Channel& channel) : call_(call), channel_(channel) {}

  void announce(int stage, size_t round, const Shard& shard) override {
    if (stage != 1) return;
    for (int p : channel_.peers()) {
      channel_.will_receive(p, shard.chunks.front().payload_bytes, round == 0);
    }
  }

  void run(int stage, const TeamRound& round) override {
    const Chunk& chunk = round.shard->chunks.front();
    if (chunk.empty()) return;
    if (stage == 0) {
      std::byte* message = channel_.open_broadcast(chunk.payload_bytes);
      call_.stages.encode_chunk(call_, chunk, round.source, Stage::kContribution, message);
      channel_.post(round.number);
      own_[round.number % kMostRounds] = message;
      return;
    }
    // The own message is still readable: this rank decodes the same bytes as the others.
    payloads_.assign(static_cast<size_t>(channel_.size()), own_[round.number % kMostRounds]);
    for (int p : channel_.sources()) {
      payloads_[static_cast<size_t>(p)] = channel_.receive(p, round.number);
    }
    // The sum is rounded to the plan's dtype, alike on all ranks: one of them keeps the error.
    const bool rounds = call_.plan.dtype != DType::kFloat32 && channel_.rank() == 0;
    call_.stages.sum(call_, chunk,
                     {payloads_, round.source, round.output, nullptr, call_.divisor(),
                      /*final=*/true, channel_.rank(), rounds ? Feedback::kAdd : Feedback::kNone});
    for (size_t i = 0; i < payloads_.size(); ++i) {
      round.put_in_bundle(call_.stages, i, payloads_[i]);
    }
    for (int p : channel_.peers()) channel_.release(p);
  }

 private:
  Call& call_;
  Channel& channel_;
  const std::byte* own_[kMostRounds] = {};
  std::vector<const std::byte*> payloads_;
};

}  // namespace

const TeamAlgorithm kOneShotTeam = {
    Algorithm::kOneShot,
    [](Call& call, Channel& channel) -> std::unique_ptr<TeamAllReduce> {
      return std::make_unique<OneShot>(call, channel);
    },
    [](int) { return 2; },
    // While a message is awaited, two more are on the way: the link does not rest when a rank is
    // late.
    [](int, int in_flight) -> size_t {
      return in_flight >= 4 ? kMostRounds : in_flight > 2 ? 2 : 1;
    }};

}  // namespace cgx
