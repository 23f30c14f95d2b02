// Scatter-reduce-all-gather of exact values, from tensor to tensor.
//
//     rank:        0             1             2
//     lane 0       chunk 1  -->  room          chunk 1 (to 1)
//                  room     <--  chunk 0       chunk 0 (to 0)      contributions
//     sum          chunk 0       chunk 1       chunk 2             in rank order, where they lie
//     lane 1       chunk 0  -->  chunk 0, also to 2 ...            sums
//
// The result has the same bits as one-shot and scatter-reduce-all-gather over messages. The traffic
// equals scatter-reduce-all-gather, without copies into and out of messages: a rank sends from its
// tensor, and receives the sums of others into it. Only contributions to its own chunk need memory,
// for a few rounds.
//
// All ranks exchange headers first. Only contributions may arrive before the headers are compared,
// in memory that nothing else uses; the receives of sums, which write to the tensor, are started
// afterwards.
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "reduce/schedule/channel.h"
#include "reduce/schedule/reducer.h"
#include "reduce/schedule/stages.h"

namespace cgx {
namespace {

constexpr int kContributionLane = 0, kSumLane = 1;

// Rounds whose contributions have memory at a time: one is summed while others arrive.
constexpr size_t kRoom = 3;
// Rounds by which a rank's sends and receives of sums run ahead. It finishes the oldest first, so
// it holds few transfers. No deadlock: the slowest rank waits only for transfers of its own round
// and earlier ones, and all others have started theirs.
constexpr size_t kAhead = 4;

class DirectAllReduce {
 public:
  DirectAllReduce(Call& call, Channel& channel, void* data)
      : call_(call),
        channel_(channel),
        transfers_(call.links.only()),
        view_{static_cast<std::byte*>(data), 0, call.plan.dtype},
        rounds_(call.plan.rounds.size()),
        me_(static_cast<size_t>(channel.rank())),
        contributions_(static_cast<size_t>(channel.size())),
        started_(static_cast<size_t>(channel.size())) {
    for (size_t round = 0; round < rounds_; ++round) {
      stride_ = std::max(stride_, transfers_.direct_room(std::max<size_t>(bytes(round, me_), 1)));
    }
    stride_ = (stride_ + 63) / 64 * 64;
    for (size_t i = 0; i < kRoom; ++i) {
      room_.push_back(call.work.buffer(i, stride_ * channel.peers().size()));
    }
  }

  void run() {
    channel_.begin_headers();
    for (size_t round = 0; round < std::min(kRoom, rounds_); ++round) await_contributions(round);
    channel_.post_headers();
    for (size_t round = 0; round < std::min(kAhead, rounds_); ++round) contribute(round);
    for (int p : channel_.sources()) channel_.take_header(p);
    for (size_t round = 0; round < std::min(kAhead, rounds_); ++round) await_sums(round);
    for (size_t round = 0; round < rounds_; ++round) {
      sum(round);
      if (round + kRoom < rounds_) await_contributions(round + kRoom);
      if (round >= kAhead) settle(round - kAhead);
      if (round + kAhead < rounds_) {
        contribute(round + kAhead);
        await_sums(round + kAhead);
      }
    }
    for (size_t round = rounds_ - std::min(kAhead, rounds_); round < rounds_; ++round) {
      settle(round);
    }
  }

 private:
  struct StartedTransfer {
    size_t round;
    size_t received;  // bytes; 0: a send
    std::unique_ptr<Pending> pending;
  };

  const Chunk& chunk(size_t round, size_t rank) const {
    return call_.plan.rounds[round].shards.front().chunks[rank];
  }
  size_t bytes(size_t round, size_t rank) const {
    return chunk(round, rank).values * size_of(view_.dtype);
  }
  std::byte* at(size_t round, size_t rank) const {
    return view_.at(chunk(round, rank).runs.front(), 0);
  }

  // Memory for the contribution of peer number `index` of sources().
  std::byte* room(size_t round, size_t index) const {
    return room_[round % kRoom] + index * stride_;
  }

  void send(int peer, int lane, size_t round, size_t owner) {
    const size_t length = bytes(round, owner);
    if (length == 0) return;
    StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
    started_[static_cast<size_t>(peer)].push_back(
        {round, 0, transfers_.send_from(peer, lane, at(round, owner), length)});
    channel_.count_direct(length, 0);
  }

  void contribute(size_t round) {
    for (int p : channel_.peers()) send(p, kContributionLane, round, static_cast<size_t>(p));
  }

  void await_contributions(size_t round) {
    const size_t length = bytes(round, me_);
    if (length == 0) return;
    StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
    for (size_t i = 0; i < channel_.sources().size(); ++i) {
      const int p = channel_.sources()[i];
      contributions_[static_cast<size_t>(p)].push_back(transfers_.receive_into(
          p, kContributionLane, room(round, i), length, transfers_.direct_room(length)));
    }
  }

  void await_sums(size_t round) {
    StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
    for (int p : channel_.sources()) {
      const auto from = static_cast<size_t>(p);
      const size_t length = bytes(round, from);
      if (length == 0) continue;
      started_[from].push_back(
          {round, length, transfers_.receive_into(p, kSumLane, at(round, from), length, length)});
    }
  }

  void sum(size_t round) {
    const size_t length = bytes(round, me_);
    if (length == 0) return;
    payloads_.assign(static_cast<size_t>(channel_.size()), nullptr);  // nullptr: own values
    {
      StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
      for (size_t i = 0; i < channel_.sources().size(); ++i) {
        const int p = channel_.sources()[i];
        auto& waiting = contributions_[static_cast<size_t>(p)];
        transfers_.finish(*waiting.front(), p, call_.deadline);
        waiting.pop_front();
        channel_.count_direct(0, length);
        payloads_[static_cast<size_t>(p)] = room(round, i);
      }
    }
    // add_residual() has left an error already where values have 16 bits; float32 has none.
    const bool rounds = view_.dtype != DType::kFloat32;
    call_.stages.sum(call_, chunk(round, me_),
                     {payloads_, view_, view_, nullptr, call_.divisor(), /*final=*/true,
                      /*own_index=*/-1, rounds ? Feedback::kAdd : Feedback::kNone});
    for (int p : channel_.peers()) send(p, kSumLane, round, me_);
  }

  // Waits for the transfers of rounds up to this one.
  void settle(size_t round) {
    StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
    for (int p : channel_.sources()) {
      std::deque<StartedTransfer>& started = started_[static_cast<size_t>(p)];
      for (auto& transfer : started) {
        if (transfer.round > round) continue;
        transfers_.finish(*transfer.pending, p, call_.deadline);
        channel_.count_direct(0, transfer.received);
      }
      std::erase_if(started,
                    [&](const StartedTransfer& transfer) { return transfer.round <= round; });
    }
  }

  Call& call_;
  Channel& channel_;
  DirectTransfers& transfers_;
  const View view_;
  const size_t rounds_;
  const size_t me_;
  size_t stride_ = 0;             // room of one contribution
  std::vector<std::byte*> room_;  // by round
  std::vector<const std::byte*> payloads_;
  // By peer. The last members, and so destroyed first: after that, transfers that were under way at
  // an error no longer touch the tensor and the room.
  std::vector<std::deque<std::unique_ptr<Pending>>> contributions_;
  std::vector<std::deque<StartedTransfer>> started_;
};

}  // namespace

void all_reduce_direct(Call& call, void* data) {
  if (call.plan.size == 1) return;
  std::vector<int> members(static_cast<size_t>(call.plan.size));
  std::iota(members.begin(), members.end(), 0);
  Channel channel(call, call.links.only(), std::move(members), call.topology.host_count() > 1);
  call.stages.add_residual(call, data, call.plan.values);
  DirectAllReduce(call, channel, data).run();
}

}  // namespace cgx
