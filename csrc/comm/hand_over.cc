#include "comm/hand_over.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.h"
#include "comm/direct_transfers.h"
#include "comm/failure.h"

namespace cgx {

struct HandOver::RankPair {
  struct Transfer {
    const std::byte* source = nullptr;  // of a send
    std::byte* target = nullptr;        // of a receive
    size_t bytes = 0;                   // of a receive: its room
    bool ended = false;
    std::optional<Failure> failure;
  };
  using TransferPtr = std::shared_ptr<Transfer>;
  struct Lane {
    std::deque<TransferPtr> sends, receives;
  };
  Lane lanes[DirectTransfers::kDirectLanes];
  bool left = false;  // one of the two
  std::mutex mutex;   // guards all of it
  std::condition_variable changed;

  // Called with the mutex held, as is the next one.
  void meet(Lane& lane) {
    while (!lane.sends.empty() && !lane.receives.empty()) {
      const TransferPtr send = std::move(lane.sends.front());
      const TransferPtr receive = std::move(lane.receives.front());
      lane.sends.pop_front();
      lane.receives.pop_front();
      if (send->bytes > receive->bytes) {
        send->failure = receive->failure =
            Failure{FailureKind::kMismatch,
                    str_of("a message of ", send->bytes, " bytes for room of ", receive->bytes)};
      } else {
        std::memcpy(receive->target, send->source, send->bytes);
      }
      send->ended = receive->ended = true;
    }
    changed.notify_all();
  }

  void end_all() {
    left = true;
    for (Lane& lane : lanes) {
      for (auto* transfers : {&lane.sends, &lane.receives}) {
        for (const TransferPtr& transfer : *transfers) fail(*transfer);
        transfers->clear();
      }
    }
    changed.notify_all();
  }

  static void fail(Transfer& transfer) {
    transfer.failure = Failure{FailureKind::kPeerLost, "it has left the group"};
    transfer.ended = true;
  }
};

namespace {

class HandedOver final : public Pending {
 public:
  HandedOver(std::shared_ptr<HandOver::RankPair> pair, HandOver::RankPair::TransferPtr transfer)
      : pair_(std::move(pair)), transfer_(std::move(transfer)) {}

  ~HandedOver() override {
    std::lock_guard lock(pair_->mutex);
    for (HandOver::RankPair::Lane& lane : pair_->lanes) {
      std::erase(lane.sends, transfer_);
      std::erase(lane.receives, transfer_);
    }
  }

  bool done() override {
    std::lock_guard lock(pair_->mutex);
    return transfer_->ended;
  }

  bool ended_within(std::chrono::nanoseconds limit) {
    std::unique_lock lock(pair_->mutex);
    return pair_->changed.wait_for(lock, limit, [&] { return transfer_->ended; });
  }

  void wait(const Deadline& deadline) override {
    if (!ended_within(deadline.left())) throw TimeoutError("the peer has not come to the transfer");
    if (transfer_->failure) throw_failure(*transfer_->failure);
  }

 private:
  const std::shared_ptr<HandOver::RankPair> pair_;
  const HandOver::RankPair::TransferPtr transfer_;
};

std::unique_ptr<Pending> start(const std::shared_ptr<HandOver::RankPair>& pair, int lane,
                               bool sends, HandOver::RankPair::TransferPtr transfer) {
  {
    std::lock_guard lock(pair->mutex);
    if (pair->left) {
      HandOver::RankPair::fail(*transfer);
    } else {
      HandOver::RankPair::Lane& mine = pair->lanes[lane];
      (sends ? mine.sends : mine.receives).push_back(transfer);
      pair->meet(mine);
    }
  }
  return std::make_unique<HandedOver>(pair, std::move(transfer));
}

}  // namespace

HandOver::HandOver(int size) : left_(static_cast<size_t>(size)) {}

std::shared_ptr<HandOver::RankPair> HandOver::pair(int from, int to) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<RankPair>& found = pairs_[{from, to}];
  if (!found) {
    found = std::make_shared<RankPair>();
    found->left = left_[static_cast<size_t>(from)] || left_[static_cast<size_t>(to)];
  }
  return found;
}

bool HandOver::ended_within(Pending& transfer, std::chrono::nanoseconds limit) {
  return static_cast<HandedOver&>(transfer).ended_within(limit);
}

std::unique_ptr<Pending> HandOver::send_from(int rank, int peer, int lane, const std::byte* data,
                                             size_t bytes) {
  auto transfer = std::make_shared<HandOver::RankPair::Transfer>();
  transfer->source = data;
  transfer->bytes = bytes;
  return start(pair(rank, peer), lane, true, std::move(transfer));
}

std::unique_ptr<Pending> HandOver::receive_into(int rank, int peer, int lane, std::byte* data,
                                                size_t room) {
  auto transfer = std::make_shared<HandOver::RankPair::Transfer>();
  transfer->target = data;
  transfer->bytes = room;
  return start(pair(peer, rank), lane, false, std::move(transfer));
}

void HandOver::leave(int rank) {
  std::lock_guard lock(mutex_);
  left_[static_cast<size_t>(rank)] = true;
  for (auto& [ranks, met] : pairs_) {
    if (ranks.first != rank && ranks.second != rank) continue;
    std::lock_guard transfers(met->mutex);
    met->end_all();
  }
}

}  // namespace cgx
