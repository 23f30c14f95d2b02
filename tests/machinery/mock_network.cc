#include "machinery/mock_network.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/arguments.h"
#include "comm/failure.h"

namespace cgx {
namespace {

using Clock = Deadline::Clock;

}  // namespace

struct MockNetwork::State {
  struct Transfer {
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    size_t bytes = 0;
    int owner = 0;
    int peer = 0;
    std::vector<std::byte> payload;  // of a receive that has met its send
    bool met = false;
    bool delivered = false;
    Clock::time_point ready{};
    std::optional<Failure> failure;
  };

  using TransferPtr = std::shared_ptr<Transfer>;

  struct Queue {
    std::deque<TransferPtr> sends;
    std::deque<TransferPtr> receives;
  };

  explicit State(int ranks)
      : size(ranks), forged(ranks), operations_left(ranks, -1), silent(ranks, false) {}

  // All of the following are called with the mutex held.
  void meet(Queue& queue);
  bool lost(int one, int other) const;  // silently
  void end_all(const Failure& failure, int of_rank);
  bool ended(Transfer& transfer);

  const int size;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int, int, int>, Queue> queues;  // from, to, tag
  std::vector<std::optional<uint64_t>> forged;
  std::vector<int> operations_left;
  std::vector<bool> silent;
  std::optional<Failure> broken;
  std::chrono::microseconds delay{0};
  uint64_t random = 1;
  int overruns = 0;
  bool lazy = false;
  int tags = 1 << 20;
};

bool MockNetwork::State::lost(int one, int other) const { return silent[one] || silent[other]; }

void MockNetwork::State::meet(Queue& queue) {
  while (!queue.sends.empty() && !queue.receives.empty()) {
    TransferPtr send = queue.sends.front();
    TransferPtr receive = queue.receives.front();
    queue.sends.pop_front();
    queue.receives.pop_front();
    if (send->bytes > receive->bytes) {
      ++overruns;
      send->failure = receive->failure = Failure{
          FailureKind::kMismatch,
          str_of("mock: message of ", send->bytes, " bytes for a receive of ", receive->bytes)};
      continue;
    }
    receive->payload.assign(send->source, send->source + send->bytes);
    // Whoever reads before the end of the transfer finds this.
    std::memset(receive->target, 0xEE, receive->bytes);
    for (Transfer* transfer : {send.get(), receive.get()}) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      transfer->ready =
          Clock::now() + std::chrono::microseconds((random >> 33) % (delay.count() + 1));
      transfer->met = true;
    }
  }
  changed.notify_all();
}

void MockNetwork::State::end_all(const Failure& failure, int of_rank) {
  for (auto& [key, queue] : queues) {
    for (auto* transfers : {&queue.sends, &queue.receives}) {
      std::erase_if(*transfers, [&](const TransferPtr& transfer) {
        if (of_rank >= 0 && transfer->owner != of_rank && transfer->peer != of_rank) return false;
        transfer->failure = failure;
        return true;
      });
    }
  }
  changed.notify_all();
}

bool MockNetwork::State::ended(Transfer& transfer) {
  if (transfer.failure || transfer.delivered) return true;
  if (!transfer.met || Clock::now() < transfer.ready) return false;
  if (!transfer.payload.empty())
    std::memcpy(transfer.target, transfer.payload.data(), transfer.payload.size());
  transfer.delivered = true;
  return true;
}

namespace {

using Transfer = MockNetwork::State::Transfer;
using TransferPtr = MockNetwork::State::TransferPtr;
using Queue = MockNetwork::State::Queue;

class MockPending final : public Pending {
 public:
  MockPending(std::shared_ptr<MockNetwork::State> state, TransferPtr transfer)
      : state_(std::move(state)), transfer_(std::move(transfer)) {}

  // As a real library that lets go: nothing of the transfer's memory is touched from here on.
  ~MockPending() override {
    std::lock_guard lock(state_->mutex);
    if (transfer_->met) return;  // a copy was taken, and only ended() hands it over
    for (auto& [key, queue] : state_->queues) {
      std::erase(queue.sends, transfer_);
      std::erase(queue.receives, transfer_);
    }
  }

  bool done() override {
    std::lock_guard lock(state_->mutex);
    if (state_->lazy && !waited_) return false;
    return state_->ended(*transfer_);
  }

  void wait(const Deadline& deadline) override {
    std::unique_lock lock(state_->mutex);
    while (!state_->ended(*transfer_)) {
      if (deadline.expired())
        throw TimeoutError(str_of("mock: rank ", transfer_->peer, " did not come"));
      auto limit =
          std::min<std::chrono::nanoseconds>(deadline.left(), std::chrono::milliseconds(100));
      if (transfer_->met)
        limit = std::min<std::chrono::nanoseconds>(limit, transfer_->ready - Clock::now());
      state_->changed.wait_for(
          lock, std::max<std::chrono::nanoseconds>(limit, std::chrono::microseconds(1)));
    }
    waited_ = true;
    if (transfer_->failure) throw_failure(*transfer_->failure);
  }

 private:
  bool waited_ = false;
  std::shared_ptr<MockNetwork::State> state_;
  TransferPtr transfer_;
};

class MockEndpoint final : public PointToPoint {
 public:
  MockEndpoint(std::shared_ptr<MockNetwork::State> state, int rank)
      : state_(std::move(state)), rank_(rank) {}

  ~MockEndpoint() override {
    std::lock_guard lock(state_->mutex);
    state_->end_all({FailureKind::kPeerLost, str_of("mock: rank ", rank_, " has gone")}, rank_);
    state_->operations_left[rank_] = 0;
  }

  int rank() const override { return rank_; }
  int size() const override { return state_->size; }
  const char* name() const override { return "mock"; }
  bool can_poll() const override {
    std::lock_guard lock(state_->mutex);
    return !state_->lazy;
  }
  bool lets_go() const override { return true; }
  int tags() const override {
    std::lock_guard lock(state_->mutex);
    return state_->tags;
  }

  std::unique_ptr<Pending> send(int peer, int tag, const std::byte* data, size_t bytes) override {
    auto transfer = std::make_shared<Transfer>();
    transfer->source = data;
    transfer->bytes = bytes;
    return start(peer, tag, true, std::move(transfer));
  }

  std::unique_ptr<Pending> receive(int peer, int tag, std::byte* data, size_t bytes) override {
    auto transfer = std::make_shared<Transfer>();
    transfer->target = data;
    transfer->bytes = bytes;
    return start(peer, tag, false, std::move(transfer));
  }

  std::string broken(int peer) override {
    std::lock_guard lock(state_->mutex);
    return state_->lost(rank_, peer) ? "mock: the connection has broken" : "";
  }

  void abort(const std::string& reason) override {
    std::lock_guard lock(state_->mutex);
    if (!state_->broken) state_->broken = Failure{FailureKind::kAborted, reason};
    state_->end_all(*state_->broken, -1);
  }

 private:
  std::unique_ptr<Pending> start(int peer, int tag, bool sending, TransferPtr transfer) {
    check_peer(peer, rank_, state_->size);
    std::lock_guard lock(state_->mutex);
    if (tag < 0 || tag >= state_->tags) throw ConfigError(str_of("mock: tag ", tag));
    transfer->owner = rank_;
    transfer->peer = peer;
    int& left = state_->operations_left[rank_];
    const bool lost = left == 0 || state_->operations_left[peer] == 0;
    if (left > 0) --left;
    if (state_->broken) {
      transfer->failure = state_->broken;
    } else if (lost) {
      transfer->failure = Failure{FailureKind::kPeerLost, str_of("mock: connection of ranks ",
                                                                 rank_, " and ", peer, " lost")};
      state_->end_all(*transfer->failure, left == 0 ? rank_ : peer);
    } else if (sending) {
      if (tag == 0 && state_->forged[rank_]) {
        // Written to the sender's own memory: it is being sent, so the sender does not look at it.
        std::memcpy(const_cast<std::byte*>(transfer->source), &*state_->forged[rank_],
                    sizeof(uint64_t));
        state_->forged[rank_].reset();
      }
      Queue& queue = state_->queues[{rank_, peer, tag}];
      queue.sends.push_back(transfer);
      if (!state_->lost(rank_, peer)) state_->meet(queue);
    } else {
      Queue& queue = state_->queues[{peer, rank_, tag}];
      queue.receives.push_back(transfer);
      if (!state_->lost(rank_, peer)) state_->meet(queue);
    }
    return std::make_unique<MockPending>(state_, std::move(transfer));
  }

  std::shared_ptr<MockNetwork::State> state_;
  int rank_;
};

}  // namespace

MockNetwork::MockNetwork(int size) : state_(std::make_shared<State>(size)) { check_rank(0, size); }

std::shared_ptr<PointToPoint> MockNetwork::endpoint(int rank) {
  check_rank(rank, state_->size);
  return std::make_shared<MockEndpoint>(state_, rank);
}

void MockNetwork::set_delay(std::chrono::microseconds longest, uint64_t seed) {
  std::lock_guard lock(state_->mutex);
  state_->delay = longest;
  state_->random = seed * 2 + 1;
}

void MockNetwork::set_lazy(bool lazy) {
  std::lock_guard lock(state_->mutex);
  state_->lazy = lazy;
}

void MockNetwork::set_tags(int tags) {
  std::lock_guard lock(state_->mutex);
  state_->tags = tags;
}

void MockNetwork::forge_length(int rank, uint64_t length) {
  check_rank(rank, state_->size);
  std::lock_guard lock(state_->mutex);
  state_->forged[rank] = length;
}

void MockNetwork::fail_after(int rank, int operations) {
  check_rank(rank, state_->size);
  std::lock_guard lock(state_->mutex);
  state_->operations_left[rank] = operations;
}

void MockNetwork::break_silently(int rank) {
  check_rank(rank, state_->size);
  std::lock_guard lock(state_->mutex);
  state_->silent[rank] = true;
}

int MockNetwork::overruns() const {
  std::lock_guard lock(state_->mutex);
  return state_->overruns;
}

int MockNetwork::receives(int rank) const {
  std::lock_guard lock(state_->mutex);
  size_t waiting = 0;
  for (const auto& [key, queue] : state_->queues) {
    if (std::get<1>(key) == rank) waiting += queue.receives.size();
  }
  return static_cast<int>(waiting);
}

}  // namespace cgx
