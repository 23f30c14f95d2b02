#include "comm/shm/slots.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/arguments.h"
#include "comm/futex.h"
#include "comm/process_token.h"
#include "comm/shm/slot_failure.h"

namespace cgx {
namespace {

constexpr size_t kFirstOffset = 64 - Messages::kPayloadOffset % 64;

using std::chrono::nanoseconds;

// A sleep and its wake-up cost some 50 us, by which the peer then waits longer in its turn; one
// that does the same work in step comes within this. Spinning pays off only while the peer can run
// at the same time.
nanoseconds spin_limit_for(int size) {
  const int cores = available_cores();
  if (cores == 1) return nanoseconds(0);
  return std::chrono::microseconds(size <= cores ? 300 : 50);
}
constexpr nanoseconds kLeastSpin{500};
constexpr int kLooksPerClock = 16;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

SlotExchange::SlotExchange(std::shared_ptr<void> owner, const SlotMemory& memory, int rank,
                           std::unique_ptr<LongSlots> long_slots)
    : owner_(std::move(owner)),
      memory_(memory),
      rank_(rank),
      long_slots_(std::move(long_slots)),
      capacity_(memory.layout().capacity),
      process_(process_token()),
      crowded_(memory.layout().size > available_cores()),
      spin_limit_(spin_limit_for(memory.layout().size)),
      spin_(spin_limit_),
      sent_(memory.layout().size, 0),
      seen_(memory.layout().size) {
  check_rank(rank, memory.layout().size);
  memory_.rank(rank).process.store(process_, std::memory_order_relaxed);
  memory_.rank(rank).presence.store(RankState::kHere, std::memory_order_release);
}

SlotExchange::~SlotExchange() {
  // A forked child that cleans up its copy must not act for its parent.
  if (process_ != process_token()) return;
  memory_.rank(rank_).presence.store(RankState::kLeft, std::memory_order_seq_cst);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) ring(peer);
  }
}

void SlotExchange::check_usable() {
  if (process_ != process_token()) {
    throw ConfigError(str_of("rank ", rank_,
                             ": this communicator belongs to the parent process; a forked child "
                             "cannot use it"));
  }
  if (!first_failure_) {
    if (memory_.header().failure_state.load(std::memory_order_acquire) == SlotHeader::kNone) return;
    first_failure_ = published_failure();
  }
  throw_failure(*first_failure_);
}

bool SlotExchange::publish(const Failure& failure) {
  return publish_failure(memory_, rank_, failure);
}

Failure SlotExchange::published_failure() const {
  return cgx::published_failure(memory_, rank_, [this](int rank) { return called(rank); });
}

void SlotExchange::fail(FailureKind kind, const std::string& text) {
  // The first published failure is the cause; this rank's may be a consequence of it.
  const Failure failure{kind, text};
  if (publish(failure)) {
    first_failure_ = failure;
  } else {
    first_failure_ = published_failure();
  }
  throw_failure(*first_failure_);
}

void SlotExchange::abort(const Failure& cause) {
  if (process_ != process_token()) return;  // a forked child must not end its parent's group
  publish(cause);
}

void SlotExchange::ring(int peer) {
  RankState& state = memory_.rank(peer);
  // Sequentially consistent with the change made before and with the sleeper's "set sleeps_for,
  // look again": one of the two sides sees the other.
  if (state.sleeps_for.load(std::memory_order_seq_cst) != static_cast<uint32_t>(rank_) + 1) return;
  state.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(state.bell);
}

template <typename Ready>
bool SlotExchange::spin(int peer, Ready ready, Deadline::Clock::time_point start) {
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (ready()) {
        spin_ = std::min(spin_limit_, spin_ * 2);
        return true;
      }
      let_peers_run(crowded_);
    }
    if (!crowded_ && spin_limit_ > spin_limit_.zero()) part_from(peer);
  } while (Deadline::Clock::now() - start < spin_);
  return false;
}

void SlotExchange::part_from(int peer) {
  std::atomic<int32_t>& mine = memory_.rank(rank_).core;
  const int32_t core = OwnCore::now();
  if (mine.load(std::memory_order_relaxed) != core) mine.store(core, std::memory_order_relaxed);
  if (memory_.rank(peer).core.load(std::memory_order_relaxed) != core || !own_core_.leave()) return;
  mine.store(OwnCore::now(), std::memory_order_relaxed);
}

void SlotExchange::slept(nanoseconds waited) {
  // Spinning pays while peers are in step. A peer that came later than the longest spin is out of
  // step; one that this rank's own sleep has held up is not.
  spin_ = waited <= spin_limit_ ? std::min(spin_limit_, spin_ * 2)
                                : std::max(std::min(spin_limit_, kLeastSpin), spin_ / 2);
}

template <typename Ready>
void SlotExchange::wait_for(int peer, const char* what, const Deadline& deadline, Ready ready) {
  if (ready()) return;
  const auto since = Deadline::Clock::now();
  if (spin(peer, ready, since)) return;
  RankState& me = memory_.rank(rank_);
  const RankState& other = memory_.rank(peer);
  auto looked = Deadline::Clock::now();
  auto failed = [&] {
    return memory_.header().failure_state.load(std::memory_order_seq_cst) != SlotHeader::kNone;
  };
  auto wait_text = [&](const char* end) {
    const std::chrono::duration<double> waited = Deadline::Clock::now() - since;
    return str_of("rank ", called(rank_), " waited ", seconds_text(waited.count()), " for rank ",
                  called(peer), " to ", what, ": ", end);
  };
  for (;;) {
    const uint32_t bell = me.bell.load(std::memory_order_seq_cst);
    me.sleeps_for.store(static_cast<uint32_t>(peer) + 1, std::memory_order_seq_cst);
    const bool left = other.presence.load(std::memory_order_seq_cst) == RankState::kLeft;
    if (!ready() && !failed() && !left) {
      futex_wait(me.bell, bell, std::min<std::chrono::nanoseconds>(kWaitSlice, deadline.left()));
    }
    me.sleeps_for.store(0, std::memory_order_relaxed);

    if (failed()) check_usable();
    if (ready()) return slept(Deadline::Clock::now() - since);
    // `left` was read before ready(): whatever the peer did before it left has been seen.
    if (left) fail(FailureKind::kPeerLost, wait_text("it has closed its communicator"));
    const auto now = Deadline::Clock::now();
    if (now - looked >= kWaitSlice / 2) {
      looked = now;
      if (!peer_alive(peer)) {
        if (ready()) return;  // it did its part and died then
        // A clean close gives the life sign back too, after it has said so.
        if (other.presence.load(std::memory_order_seq_cst) == RankState::kLeft) continue;
        fail(FailureKind::kPeerLost, wait_text("its process has ended"));
      }
    }
    if (deadline.expired()) {
      fail(FailureKind::kTimeout, wait_text(str_of("deadline passed (set ", deadline.elapsed_text(),
                                                   " ago)", silent_ranks())
                                                .c_str()));
    }
  }
}

void SlotExchange::begin_call() {
  for (ReadMessages& seen : seen_) seen.expected = seen.taken;
}

void SlotExchange::expect(int peer, size_t bytes) {
  (void)bytes;  // shown with the message
  check_peer(peer, rank_, size());
  ++seen_[peer].expected;
}

std::string SlotExchange::silent_ranks() const {
  std::string text;
  int silent = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const ReadMessages& seen = seen_[peer];
    if (peer == rank_ || seen.expected <= seen.taken) continue;
    if (memory_.sent(peer, rank_).posted.load(std::memory_order_relaxed) > seen.taken) continue;
    text += str_of(silent++ == 0 ? "" : ", ", called(peer));
  }
  return silent < 2 ? "" : str_of("; nothing came from the ranks ", text);
}

std::optional<Failure> SlotExchange::failure() {
  if (memory_.header().failure_state.load(std::memory_order_acquire) == SlotHeader::kNone) {
    return std::nullopt;
  }
  return published_failure();
}

std::optional<PeerFingerprint> SlotExchange::compare_call(const Fingerprint& fingerprint) {
  if (process_ != process_token()) return std::nullopt;
  RankState::CallFingerprint& mine = memory_.rank(rank_).calls[fingerprint.number % kFingerprints];
  mine.number.store(0, std::memory_order_seq_cst);
  for (int i = 0; i < Fingerprint::kWords; ++i) {
    mine.words[i].store(fingerprint.words[i], std::memory_order_seq_cst);
  }
  // Sequentially consistent, as are the loads below: of two ranks that say something of the same
  // number at once, at least one sees the other.
  mine.number.store(fingerprint.number, std::memory_order_seq_cst);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    const RankState::CallFingerprint& theirs =
        memory_.rank(peer).calls[fingerprint.number % kFingerprints];
    Fingerprint other;
    other.number = theirs.number.load(std::memory_order_seq_cst);
    for (int i = 0; i < Fingerprint::kWords; ++i) {
      other.words[i] = theirs.words[i].load(std::memory_order_seq_cst);
    }
    if (other.number != fingerprint.number || other == fingerprint) continue;
    // Overwritten while it was read: the peer is far ahead, and has passed this number.
    if (theirs.number.load(std::memory_order_seq_cst) != fingerprint.number) continue;
    return PeerFingerprint{called(peer), other};
  }
  return std::nullopt;
}

void SlotExchange::forget_call(uint64_t number) {
  if (process_ != process_token()) return;
  memory_.rank(rank_).calls[number % kFingerprints].number.store(0, std::memory_order_seq_cst);
}

void SlotExchange::finish_call(uint64_t number) {
  if (process_ != process_token()) return;
  memory_.rank(rank_).calls[number % kFingerprints].finished.store(number,
                                                                   std::memory_order_release);
}

std::vector<int> SlotExchange::ended_peers(uint64_t number) {
  std::vector<int> ended;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_ || peer_alive(peer)) continue;
    const auto& call = memory_.rank(peer).calls[number % kFingerprints];
    // A later number: it went on from there.
    if (number > 0 && call.finished.load(std::memory_order_acquire) >= number) continue;
    ended.push_back(called(peer));
  }
  return ended;
}

void SlotExchange::begin_exchange(const Deadline& deadline) {
  // Messages that were opened but not posted are dropped: no peer has seen them.
  open_ = false;
  opened_.clear();
  std::vector<PostedMessage>& before = in_flight_[slot()];
  for (const PostedMessage& sent : before) {
    const PairSeen& seen = memory_.seen(sent.peer, rank_);
    auto released = [&] { return seen.released.load(std::memory_order_seq_cst); };
    wait_for(sent.peer, "release an earlier message", deadline,
             [&] { return released() >= sent.number; });
    if (released() > sent_[sent.peer]) {
      fail(FailureKind::kMismatch,
           str_of("rank ", called(rank_), ": rank ", called(sent.peer), " has released ",
                  released(), " messages, ", sent_[sent.peer],
                  " were sent to it: the shared memory is damaged"));
    }
  }
  before.clear();
}

void SlotExchange::make_room(size_t bytes) {
  if (bytes > longest()) Communicator::make_room(bytes);
  capacity_ = std::max(capacity_, bytes);
}

std::pair<std::byte*, uint64_t> SlotExchange::place(size_t bytes, size_t padded) {
  if (bytes <= memory_.layout().slot_bytes) {
    const size_t offset = slot() * memory_.layout().stride + kFirstOffset;
    return {memory_.slots(rank_) + offset, offset};
  }
  const bool longer = bytes > memory_.layout().capacity;
  const size_t at = slot() + (longer ? static_cast<size_t>(in_flight()) : 0);
  std::byte* memory = long_slots_->own(at, kFirstOffset + padded);
  return {memory + kFirstOffset, kLongSlot + at * kLongSlotBytes + kFirstOffset};
}

const std::byte* SlotExchange::message_at(int peer, uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || offset % 64 != kFirstOffset) return nullptr;
  const auto slots = static_cast<uint64_t>(in_flight());
  if (offset < kLongSlot) {
    const uint64_t room = slots * memory_.layout().stride;
    if (bytes > memory_.layout().slot_bytes || offset > room || bytes > room - offset) {
      return nullptr;
    }
    return memory_.slots(peer) + offset;
  }
  const uint64_t number = (offset - kLongSlot) / kLongSlotBytes;
  const uint64_t start = offset % kLongSlotBytes;
  if (number >= 2 * slots || bytes > kLongSlotBytes - start) return nullptr;
  const std::byte* memory = long_slots_->of(peer, number, start + bytes);
  return memory == nullptr ? nullptr : memory + start;
}

void SlotExchange::open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
                        const Deadline& deadline) {
  check_usable();
  check_exchange(bytes_to, rank_, size(), capacity());
  begin_exchange(deadline);
  buffers.assign(size(), nullptr);
  size_t all = 0, padded = 0;
  for (size_t bytes : bytes_to) {
    all += bytes;
    padded += aligned(bytes);
  }
  auto [memory, offset] = place(all, padded);
  for (int peer = 0; peer < size(); ++peer) {
    if (bytes_to[peer] == 0) continue;
    buffers[peer] = memory;
    opened_.push_back({peer, 0, offset, bytes_to[peer]});
    memory += aligned(bytes_to[peer]);
    offset += aligned(bytes_to[peer]);
  }
  open_ = true;
}

std::byte* SlotExchange::open_broadcast(size_t bytes, const Deadline& deadline) {
  check_usable();
  check_broadcast(bytes, capacity());
  begin_exchange(deadline);
  open_ = true;
  if (bytes == 0) return nullptr;
  const auto [memory, offset] = place(bytes, aligned(bytes));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) opened_.push_back({peer, 0, offset, bytes});
  }
  return memory;
}

void SlotExchange::post(const Deadline& deadline) {
  (void)deadline;
  check_usable();
  if (!open_) throw ConfigError(str_of("rank ", rank_, ": post() without open()"));
  open_ = false;
  if (opened_.empty()) return;
  const auto slots = static_cast<uint64_t>(in_flight());
  for (PostedMessage& sent : opened_) {
    sent.number = ++sent_[sent.peer];
    PairSent& pair = memory_.sent(rank_, sent.peer);
    PairSent::Posted& entry = pair.ring[sent.number % slots];
    entry.offset.store(sent.offset, std::memory_order_relaxed);
    entry.bytes.store(sent.bytes, std::memory_order_relaxed);
    pair.posted.store(sent.number, std::memory_order_seq_cst);
    ring(sent.peer);
  }
  in_flight_[slot()].swap(opened_);
  opened_.clear();
  ++exchange_;
}

Message SlotExchange::receive(int peer, const Deadline& deadline) {
  check_usable();
  check_peer(peer, rank_, size());
  ReadMessages& seen = seen_[peer];
  if (seen.shown) {
    throw ConfigError(
        str_of("rank ", rank_, ": receive(", peer, ") before the release of its last message"));
  }
  const PairSent& pair = memory_.sent(peer, rank_);
  const uint64_t number = seen.taken + 1;
  const auto slots = static_cast<uint64_t>(in_flight());
  auto posted = [&] { return pair.posted.load(std::memory_order_seq_cst); };
  wait_for(peer, "send a message", deadline, [&] { return posted() >= number; });

  const uint64_t available = posted();
  const PairSent::Posted& entry = pair.ring[number % slots];
  const uint64_t offset = entry.offset.load(std::memory_order_relaxed);
  const uint64_t bytes = entry.bytes.load(std::memory_order_relaxed);
  const std::byte* message = message_at(peer, offset, bytes);
  if (available >= number + slots || message == nullptr) {
    fail(FailureKind::kMismatch,
         str_of("rank ", called(rank_), ": message ", number, " of ", available, " from rank ",
                called(peer), " has ", bytes, " bytes at offset ", offset, ", allowed: 1 to ",
                memory_.layout().slot_bytes, " bytes within ", slots * memory_.layout().stride,
                ", or as many as the sender has beside its slots, at most ", slots,
                " messages unread: the shared memory is damaged"));
  }
  seen = {number, true};
  return {message, bytes};
}

Message SlotExchange::peek(int peer, const Deadline& deadline) {
  const Message message = receive(peer, deadline);
  seen_[peer] = {seen_[peer].taken - 1, false};
  return message;
}

void SlotExchange::release(int peer) {
  check_usable();
  check_peer(peer, rank_, size());
  if (!seen_[peer].shown) {
    throw ConfigError(str_of("rank ", rank_, ": release(", peer, ") without receive(", peer, ")"));
  }
  seen_[peer].shown = false;
  memory_.seen(rank_, peer).released.store(seen_[peer].taken, std::memory_order_seq_cst);
  ring(peer);
}

}  // namespace cgx
