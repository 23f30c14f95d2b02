#include "comm/relay/relay.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "comm/arguments.h"
#include "comm/failure.h"
#include "comm/relay/lengths.h"
#include "comm/relay/transfers.h"
#include "comm/shm/futex.h"

namespace cgx {
namespace {

constexpr size_t kFrame = sizeof(uint64_t);
constexpr size_t kEager = kRelayEagerBytes;
constexpr int kInFlight = 4;
constexpr size_t kMaxCapacity = size_t{1} << 47;  // sizes are added up without looking for overflow

static_assert((kFrame + Communicator::kPayloadOffset) % 64 == 0,
              "blocks are 64-byte aligned, messages follow the frame");

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Between two looks at transfers: first spin, then let others run, then sleep.
void back_off(int round) {
  if (round < 30) {
    cpu_relax();
  } else if (round < 130) {
    sched_yield();
  } else {
    const timespec pause{0, 50000};
    nanosleep(&pause, nullptr);
  }
}

using relay::ChunkToSend;
using relay::kLanes;
using relay::Lane;
using relay::length_class;
using relay::LengthClass;
using relay::Peer;

class Relay final : public Communicator {
 public:
  Relay(std::shared_ptr<PointToPoint> communicator, size_t capacity)
      : communicator_(std::move(communicator)),
        capacity_(capacity),
        classes_(communicator_->tags() >= relay::kTags),
        direct_(communicator_->tags() >= relay::kTags * (1 + kDirectLanes) &&
                communicator_->lets_go()),
        peers_(communicator_->size()) {}
  ~Relay() override;

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  const char* name() const override { return communicator_->name(); }
  size_t capacity() const override { return capacity_; }
  size_t longest() const override { return kMaxCapacity; }
  void make_room(size_t bytes) override {
    if (bytes > kMaxCapacity) Communicator::make_room(bytes);
    capacity_ = std::max(capacity_, bytes);
  }
  int in_flight() const override { return kInFlight; }
  bool announces() const override { return true; }
  bool matches_lengths() const override { return classes_; }
  size_t frame_bytes() const override { return kFrame; }
  size_t staging_bytes() const override { return pool_.bytes(); }

  void begin_call() override;
  void expect(int peer, size_t bytes) override;
  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override;
  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override;
  void post(const Deadline& deadline) override;
  void flush(const Deadline& deadline) override;
  Message receive(int peer, const Deadline& deadline) override;
  Message peek(int peer, const Deadline& deadline) override;
  void release(int peer) override;
  bool direct() const override { return direct_; }
  size_t direct_room(size_t bytes) const override { return relay::length_class(bytes).room; }
  std::unique_ptr<Pending> send_from(int peer, int lane, const std::byte* data,
                                     size_t bytes) override;
  std::unique_ptr<Pending> receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                        size_t room) override;
  void finish(Pending& transfer, int peer, const Deadline& deadline) override;
  void abort(const Failure& cause) override;
  std::optional<Failure> failure() override;

 private:
  void check_direct(const char* what, int peer, int lane, size_t bytes);
  void check_usable();
  [[noreturn]] void fail(Failure failure);
  /// Runs a step of the communicator; whatever it throws breaks the group.
  template <typename Step>
  auto guarded(int peer, const char* what, Step step);

  ChunkToSend& begin_exchange(const Deadline& deadline);
  /// The order of sends: if all ranks keep it, no two send to the same one at once.
  int nth_peer(int step) const { return (rank() + step) % size(); }
  LengthClass class_of(size_t bytes, int tag_without) const {
    return classes_ ? length_class(bytes) : LengthClass{tag_without, bytes};
  }
  void finish_sends(ChunkToSend& out, const Deadline& deadline);
  /// Makes sure that the next message that the reader has not taken is expected.
  void need_next(int peer);
  void start_receive(int peer);
  void measure(int peer, Lane& lane);
  void advance(int peer);
  void start_rests(const Deadline& deadline);
  bool advance_others(int peer);
  /// `blocker` moves the awaited transfer on and returns what it still waits for, null at its end.
  template <typename Blocker>
  void wait_for(int peer, const char* what, const Deadline& deadline, Blocker blocker);

  std::shared_ptr<PointToPoint> communicator_;
  size_t capacity_;
  const bool classes_;
  const bool direct_;
  RelayPool pool_;
  std::vector<Peer> peers_;
  ChunkToSend outgoing_[kInFlight];
  uint64_t exchange_ = 0;
  bool open_ = false;
  bool in_call_ = false;

  std::atomic<bool> broken_{false};
  std::mutex failure_mutex_;
  std::optional<Failure> first_failure_;
};

Relay::~Relay() {
  bool busy = false;
  auto settle = [&busy](std::unique_ptr<Pending>& pending) {
    busy = busy || (pending && !pending->done());
    pending.reset();
  };
  for (ChunkToSend& out : outgoing_) {
    for (ChunkToSend::Send& send : out.sends) settle(send.pending);
  }
  for (Peer& peer : peers_) {
    for (Lane& lane : peer.lanes) {
      settle(lane.first);
      settle(lane.rest);
    }
  }
  const bool sole_owner = communicator_.use_count() == 1;
  communicator_.reset();
  if (!busy || sole_owner) return;
  for (ChunkToSend& out : outgoing_) out.block.abandon();
  for (Peer& peer : peers_) {
    for (Lane& lane : peer.lanes) lane.block.abandon();
  }
}

void Relay::check_usable() {
  if (!broken_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(failure_mutex_);
  throw_failure(*first_failure_);
}

void Relay::fail(Failure failure) {
  bool first = false;
  {
    std::lock_guard lock(failure_mutex_);
    first = !first_failure_;
    if (first) first_failure_ = std::move(failure);
    failure = *first_failure_;
  }
  broken_.store(true, std::memory_order_release);
  if (first) {
    try {
      communicator_->abort(failure.text);
    } catch (const std::exception&) {
      // The cause is what the caller must hear; a communicator that cannot even abort adds nothing
      // to it.
    }
  }
  throw_failure(failure);
}

void Relay::abort(const Failure& cause) {
  {
    std::lock_guard lock(failure_mutex_);
    if (!first_failure_) first_failure_ = cause;
  }
  broken_.store(true, std::memory_order_release);
  communicator_->abort(cause.text);
}

std::optional<Failure> Relay::failure() {
  if (!broken_.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard lock(failure_mutex_);
  return first_failure_;
}

template <typename Step>
auto Relay::guarded(int peer, const char* what, Step step) {
  const Deadline started;
  try {
    return step();
  } catch (const std::exception& error) {
    Failure failure = failure_of(error);
    if (failure.rank >= 0) fail(std::move(failure));  // a peer has told the cause
    failure.text = str_of("rank ", called(rank()), " over ", name(), ", ", what, " rank ",
                          called(peer), ", ", started.elapsed_text(), ": ", failure.text);
    fail(std::move(failure));
  }
}

void Relay::begin_call() {
  in_call_ = true;
  for (Peer& peer : peers_) peer.call = relay::InCall{};
  // Nobody reads what was posted in the call before.
  for (ChunkToSend& out : outgoing_) {
    if (out.sends.empty()) pool_.give(std::move(out.block));
  }
}

void Relay::expect(int peer, size_t bytes) {
  check_usable();
  check_peer(peer, rank(), size());
  Peer& in = peers_[peer];
  const bool announced = !in_call_ || !in.call.expected;
  if (in_call_ && (bytes > capacity_ || (!announced && bytes == 0))) {
    throw ConfigError(str_of("rank ", rank(), ": expect(", peer, ", ", bytes,
                             "): within a call the length must be given, allowed: 1 to ",
                             capacity_));
  }
  in.call.expected = true;
  in.expected.push_back({bytes, announced, announced && in_call_ && classes_ && bytes > 0});
  advance(peer);
}

void Relay::need_next(int peer) {
  Peer& in = peers_[peer];
  if (in.started > in.taken || !in.expected.empty()) return;
  if (in_call_ && in.call.expected) {
    throw ConfigError(
        str_of("rank ", rank(), ": receive(", peer, ") of a message that was not expected"));
  }
  expect(peer, 0);
}

void Relay::start_receive(int peer) {
  Peer& in = peers_[peer];
  Lane& lane = in.lane(in.started);
  const relay::Expected next = in.expected.front();
  lane.announced = next.announced;
  lane.promise = next.promised ? next.bytes : 0;
  lane.bytes = next.announced ? 0 : next.bytes;
  // What does not come with a first frame, and where it is put; payloads are aligned alike.
  const size_t place = next.announced ? kEager : kFrame;
  const bool has_rest = next.known() && kFrame + next.bytes > place;
  LengthClass rest;
  if (has_rest) rest = class_of(kFrame + next.bytes - place, relay::kAgreedTag);
  guarded(peer, "making room for a message from",
          [&] { lane.block = pool_.take(place + rest.room); });
  auto receive = [&](int tag, size_t offset, size_t bytes) {
    return guarded(peer, "posting a receive from", [&] {
      return communicator_->receive(peer, tag, lane.block.data() + offset, bytes);
    });
  };
  if (next.announced) {
    lane.first = receive(relay::kFirstTag, 0, kEager);
    if (has_rest) lane.rest = receive(rest.tag, kEager, rest.room);
    if (!next.known()) ++in.unknown;
  } else {
    lane.first = receive(rest.tag, kFrame, rest.room);
  }
  in.expected.pop_front();
  ++in.started;
}

// Looks at the length in a first frame that has come.
void Relay::measure(int peer, Lane& lane) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, lane.block.data(), kFrame);
  if (bytes == 0 || bytes > capacity_) {
    fail({FailureKind::kMismatch,
          str_of("rank ", called(rank()), " over ", name(), ": rank ", called(peer),
                 " announces a message of ", bytes, " bytes, allowed: 1 to ", capacity_)});
  }
  lane.bytes = bytes;
  if (lane.promise != 0) return;
  --peers_[peer].unknown;
  if (kFrame + bytes <= kEager) return;
  const LengthClass rest = class_of(kFrame + bytes - kEager, relay::kRestTag);
  guarded(peer, "making room for a message from",
          [&] { pool_.grow(lane.block, kEager + rest.room, kEager); });
  lane.rest = guarded(peer, "posting a receive from", [&] {
    return communicator_->receive(peer, rest.tag, lane.block.data() + kEager, rest.room);
  });
}

// Posts receives as far as they are due. Never waits.
void Relay::advance(int peer) {
  Peer& in = peers_[peer];
  for (;;) {
    while (!in.expected.empty() && in.started - in.released < kLanes) {
      // Receives of a class meet messages in their order: none may be posted before a rest whose
      // class is not known yet.
      if (in.unknown > 0 && in.expected.front().known()) break;
      start_receive(peer);
    }
    const uint64_t before = in.unknown;
    while (in.measured < in.started) {
      Lane& lane = in.lane(in.measured);
      if (lane.announced) {
        if (!lane.first->done()) break;
        guarded(peer, "receiving from", [&] { lane.first->wait(Deadline()); });
        measure(peer, lane);
      }
      ++in.measured;
    }
    if (in.unknown == before) return;
  }
}

// Moves the transfers of all but one peer on; whether looking again soon may move them further.
bool Relay::advance_others(int peer) {
  bool under_way = false;
  for (int other = 0; other < size(); ++other) {
    if (other == peer || other == rank()) continue;
    Peer& in = peers_[other];
    if (in.measured == in.started) continue;
    advance(other);
    under_way = under_way || in.measured < in.started;
  }
  return under_way;
}

template <typename Blocker>
void Relay::wait_for(int peer, const char* what, const Deadline& deadline, Blocker blocker) {
  const Deadline started;
  for (int round = 0;; ++round) {
    check_usable();
    const bool others = communicator_->can_poll() && advance_others(peer);
    Pending* pending = blocker();
    if (pending == nullptr) return;
    if (deadline.expired()) {
      fail({FailureKind::kTimeout,
            str_of("rank ", called(rank()), " over ", name(), ", ", what, " rank ", called(peer),
                   ", waited ", started.elapsed_text(), ": deadline passed (set ",
                   deadline.elapsed_text(), " ago)")});
    }
    if (others) {
      back_off(round);
    } else {
      guarded(peer, what, [&] { pending->wait(deadline); });
    }
  }
}

// Where nobody can see that a transfer has ended without waiting for it: waits for the first frames
// of all peers that are to send and have not promised a length, so that the rests of all of them
// travel at once.
void Relay::start_rests(const Deadline& deadline) {
  for (int peer = 0; peer < size(); ++peer) {
    advance(peer);
    Peer& in = peers_[peer];
    while (in.unknown > 0) {
      guarded(peer, "receiving from", [&] { in.lane(in.measured).first->wait(deadline); });
      advance(peer);
    }
  }
}

void Relay::finish_sends(ChunkToSend& out, const Deadline& deadline) {
  for (ChunkToSend::Send& send : out.sends) {
    wait_for(send.peer, "sending to", deadline, [&]() -> Pending* {
      advance(send.peer);
      return send.pending->done() ? nullptr : send.pending.get();
    });
    guarded(send.peer, "sending to", [&] { send.pending->wait(deadline); });
  }
  out.sends.clear();
}

ChunkToSend& Relay::begin_exchange(const Deadline& deadline) {
  // What was opened and not posted is forgotten: nobody has seen it.
  open_ = false;
  ChunkToSend& out = outgoing_[exchange_ % kInFlight];
  finish_sends(out, deadline);
  out.parts.clear();
  pool_.give(std::move(out.block));
  return out;
}

void Relay::flush(const Deadline& deadline) {
  check_usable();
  for (ChunkToSend& out : outgoing_) finish_sends(out, deadline);
}

void Relay::open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
                 const Deadline& deadline) {
  check_usable();
  check_exchange(bytes_to, rank(), size(), capacity_);
  ChunkToSend& out = begin_exchange(deadline);
  size_t total = 0;
  for (int step = 1; step < size(); ++step) {
    const int peer = nth_peer(step);
    if (bytes_to[peer] == 0) continue;
    out.parts.push_back({peer, total, bytes_to[peer]});
    total += aligned(kFrame + bytes_to[peer]);
  }
  guarded(rank(), "making room for messages of", [&] { out.block = pool_.take(total); });
  buffers.assign(size(), nullptr);
  for (const ChunkToSend::Part& part : out.parts)
    buffers[part.peer] = out.block.data() + part.offset + kFrame;
  open_ = true;
}

std::byte* Relay::open_broadcast(size_t bytes, const Deadline& deadline) {
  check_usable();
  check_broadcast(bytes, capacity_);
  ChunkToSend& out = begin_exchange(deadline);
  open_ = true;
  if (bytes == 0) return nullptr;
  for (int step = 1; step < size(); ++step) out.parts.push_back({nth_peer(step), 0, bytes});
  guarded(rank(), "making room for messages of", [&] { out.block = pool_.take(kFrame + bytes); });
  return out.block.data() + kFrame;
}

void Relay::post(const Deadline& deadline) {
  (void)deadline;
  check_usable();
  if (!open_) throw ConfigError(str_of("rank ", rank(), ": post() without open()"));
  open_ = false;
  ChunkToSend& out = outgoing_[exchange_ % kInFlight];
  if (out.parts.empty()) return;
  auto announced = [&](const ChunkToSend::Part& part) {
    return !in_call_ || !peers_[part.peer].call.sent;
  };
  for (const ChunkToSend::Part& part : out.parts) {
    const uint64_t bytes = part.bytes;
    std::memcpy(out.block.data() + part.offset, &bytes, kFrame);
  }
  auto send = [&](int peer, int tag, const std::byte* data, size_t bytes) {
    guarded(peer, "sending to",
            [&] { out.sends.push_back({peer, communicator_->send(peer, tag, data, bytes)}); });
  };
  // All first frames before any rest: small messages do not queue behind large ones.
  for (const ChunkToSend::Part& part : out.parts) {
    if (!announced(part)) continue;
    send(part.peer, relay::kFirstTag, out.block.data() + part.offset,
         std::min(kEager, kFrame + part.bytes));
  }
  for (const ChunkToSend::Part& part : out.parts) {
    const std::byte* frame = out.block.data() + part.offset;
    if (!announced(part)) {
      send(part.peer, class_of(part.bytes, relay::kAgreedTag).tag, frame + kFrame, part.bytes);
    } else if (kFrame + part.bytes > kEager) {
      const size_t rest = kFrame + part.bytes - kEager;
      send(part.peer, class_of(rest, relay::kRestTag).tag, frame + kEager, rest);
    }
    peers_[part.peer].call.sent = true;
  }
  ++exchange_;
}

Message Relay::receive(int peer, const Deadline& deadline) {
  check_usable();
  check_peer(peer, rank(), size());
  Peer& in = peers_[peer];
  if (in.taken != in.released) {
    throw ConfigError(
        str_of("rank ", rank(), ": receive(", peer, ") before the release of its last message"));
  }
  need_next(peer);
  const uint64_t number = in.taken;
  Lane& lane = in.lane(number);
  if (!communicator_->can_poll()) start_rests(deadline);
  wait_for(peer, "receiving from", deadline, [&]() -> Pending* {
    advance(peer);
    if (in.measured <= number) return lane.first.get();
    return lane.broken() || lane.last()->done() ? nullptr : lane.last();
  });
  if (lane.broken()) {
    fail({FailureKind::kMismatch,
          str_of("rank ", called(rank()), " over ", name(), ": rank ", called(peer),
                 " announces a message of ", lane.bytes, " bytes, expected were ", lane.promise)});
  }
  guarded(peer, "receiving from", [&] { lane.last()->wait(deadline); });
  in.taken = number + 1;
  return {lane.block.data() + kFrame, lane.bytes};
}

Message Relay::peek(int peer, const Deadline& deadline) {
  check_usable();
  check_peer(peer, rank(), size());
  Peer& in = peers_[peer];
  if (in.taken != in.released) {
    throw ConfigError(
        str_of("rank ", rank(), ": peek(", peer, ") before the release of its last message"));
  }
  need_next(peer);
  const uint64_t number = in.taken;
  Lane& lane = in.lane(number);
  wait_for(peer, "receiving from", deadline, [&]() -> Pending* {
    advance(peer);
    return in.measured <= number || !lane.first->done() ? lane.first.get() : nullptr;
  });
  guarded(peer, "receiving from", [&] { lane.first->wait(deadline); });
  if (!lane.announced) return {lane.block.data() + kFrame, lane.bytes};
  return {lane.block.data() + kFrame, std::min<size_t>(lane.bytes, kEager - kFrame)};
}

void Relay::release(int peer) {
  check_usable();
  check_peer(peer, rank(), size());
  Peer& in = peers_[peer];
  if (in.taken == in.released) {
    throw ConfigError(str_of("rank ", rank(), ": release(", peer, ") without receive(", peer, ")"));
  }
  Lane& lane = in.lane(in.released);
  lane.first.reset();
  lane.rest.reset();
  pool_.give(std::move(lane.block));
  in.released = in.taken;
  advance(peer);
}

void Relay::check_direct(const char* what, int peer, int lane, size_t bytes) {
  check_usable();
  check_peer(peer, rank(), size());
  if (direct_ && lane >= 0 && lane < kDirectLanes && bytes > 0) return;
  throw ConfigError(str_of("rank ", rank(), ": ", what, "(", peer, ", lane ", lane, ", ", bytes,
                           " bytes) over ", name(), direct_ ? "; allowed: lanes 0 to " : ", which",
                           direct_ ? str_of(kDirectLanes - 1, ", from 1 byte on")
                                   : std::string(" has no direct transfers")));
}

std::unique_ptr<Pending> Relay::send_from(int peer, int lane, const std::byte* data, size_t bytes) {
  check_direct("send_from", peer, lane, bytes);
  return guarded(peer, "sending to", [&] {
    return communicator_->send(peer, relay::direct_class(bytes, lane).tag, data, bytes);
  });
}

std::unique_ptr<Pending> Relay::receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                             size_t room) {
  check_direct("receive_into", peer, lane, bytes);
  return guarded(peer, "posting a receive from", [&] {
    return communicator_->receive(peer, relay::direct_class(bytes, lane).tag, data, room);
  });
}

void Relay::finish(Pending& transfer, int peer, const Deadline& deadline) {
  const char* what = "exchanging with";
  wait_for(peer, what, deadline, [&] { return transfer.done() ? nullptr : &transfer; });
  guarded(peer, what, [&] { transfer.wait(deadline); });
}

}  // namespace

std::unique_ptr<Communicator> make_relay_communicator(std::shared_ptr<PointToPoint> communicator,
                                                      size_t capacity) {
  if (capacity < 1 || capacity > kMaxCapacity) {
    throw ConfigError(
        str_of("capacity of a relay is ", capacity, " bytes, allowed: 1 to ", kMaxCapacity));
  }
  return std::make_unique<Relay>(std::move(communicator), capacity);
}

}  // namespace cgx
