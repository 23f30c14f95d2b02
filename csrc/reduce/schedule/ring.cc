// Ring all-reduce (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009) of encoded chunks.
//
// Chunk c starts at rank c as that rank's encoded values, and goes from rank to rank; each decodes
// the partial sum, adds its own values and encodes again. After N - 1 hops it is complete, is
// encoded for the last time by the rank before c, and that encoding goes around unchanged. So a
// value is rounded N times, and the error grows with the number of ranks; every rank ends with the
// same bits.
#include <vector>

#include "reduce/schedule/team_all_reduce.h"

namespace cgx {
namespace {

class Ring final : public TeamAllReduce {
 public:
  Ring(Call& call, Channel& channel)
      : call_(call),
        channel_(channel),
        next_((channel.rank() + 1) % channel.size()),
        previous_((channel.rank() + channel.size() - 1) % channel.size()),
        bytes_(static_cast<size_t>(channel.size())) {}

  void announce(int stage, size_t round, const Shard& shard) override {
    if (stage == 0) return;
    const size_t bytes = chunk(shard, stage).payload_bytes;
    for (int p : channel_.peers()) {
      channel_.will_receive(p, p == previous_ ? bytes : 0, stage == 1 && round == 0);
    }
  }

  // N - 1 hops of partial sums, N - 1 of results, each received in the stage after it was sent.
  void run(int stage, const TeamRound& round) override {
    const Chunk& work = chunk(*round.shard, stage);
    const int last_sum = channel_.size() - 1;
    const bool last = stage == kRingTeam.stages(channel_.size()) - 1;
    if (work.empty()) {
      if (!last) channel_.post_nothing(round.number, false);
      return;
    }
    const std::byte* in = stage == 0 ? nullptr : channel_.receive(previous_, round.number);
    std::byte* out = !last ? open(work.payload_bytes) : nullptr;
    if (stage == 0) {
      call_.stages.encode_chunk(call_, work, round.source, Stage::kContribution, out);
    } else if (stage <= last_sum) {
      const bool complete = stage == last_sum;
      payloads_ = {in, nullptr};  // nullptr: own values
      call_.stages.sum(
          call_, work,
          {payloads_, round.source, complete ? round.output : View{}, out,
           complete ? call_.divisor() : 1.0F, complete, /*own_index=*/-1, Feedback::kSet});
      if (complete) round.put_in_bundle(call_.stages, index(stage), out);
    } else {
      call_.stages.decode_chunk(call_, work, in, round.output);
      if (out != nullptr) call_.stages.copy(out, in, work.payload_bytes);
      round.put_in_bundle(call_.stages, index(stage), in);
    }
    if (in != nullptr) channel_.release(previous_);
    if (out != nullptr) channel_.post(round.number);
  }

 private:
  // The chunk that this rank works on in a stage: the one that the previous rank had a stage ago.
  size_t index(int stage) const {
    const int size = channel_.size();
    return static_cast<size_t>((channel_.rank() - stage % size + size) % size);
  }
  const Chunk& chunk(const Shard& shard, int stage) const { return shard.chunks[index(stage)]; }

  std::byte* open(size_t payload_bytes) {
    bytes_[static_cast<size_t>(next_)] = payload_bytes;
    return channel_.open(bytes_)[static_cast<size_t>(next_)];
  }

  Call& call_;
  Channel& channel_;
  const int next_, previous_;
  std::vector<size_t> bytes_;
  std::vector<const std::byte*> payloads_;
};

}  // namespace

const TeamAlgorithm kRingTeam = {
    Algorithm::kRing,
    [](Call& call, Channel& channel) -> std::unique_ptr<TeamAllReduce> {
      return std::make_unique<Ring>(call, channel);
    },
    [](int size) { return 2 * size - 1; },
    // A round less than there are stages: rounds go in pairs, see for_each_step().
    [](int size, int in_flight) -> size_t { return in_flight >= 3 && size > 1 ? 2 : 1; }};

}  // namespace cgx
