// The exchange protocol over memory that all ranks see: the common part of the in-process and the
// SHM communicator.
//
// Every rank owns some slots, one per exchange in flight, and writes its messages there; receivers
// read them in place. A slot is used again when all receivers of its messages have released them.
// An exchange that does not fit into a slot gets memory of its own beside it, which stays for the
// next ones (LongSlots).
// Waiting is a short spin and then a sleep on a futex of the waiting rank; deadline, failures of
// other ranks and life signs of the peer are checked every kWaitSlice.
//
// What is read from shared memory is checked before use: a peer that scribbles there causes a
// MismatchError, not an overrun. Thread-safety: as Communicator says.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/own_core.h"
#include "comm/shm/slot_memory.h"

namespace cgx {

/// The memory of exchanges that do not fit into a slot, for one rank. Each slot has two places: one
/// with its own number, for exchanges up to SlotLayout::capacity, and one with the number of slots
/// added, for those that make_room() has allowed beyond it. One thread only.
class LongSlots {
 public:
  virtual ~LongSlots() = default;
  /// At least `bytes` bytes of memory of this rank at `place`, at a 64-byte border; readers have
  /// released what lay there. ResourceError: there is not so much.
  virtual std::byte* own(size_t place, size_t bytes) = 0;
  /// The memory of a peer that has posted a message in it; nullptr if it has less than `bytes`
  /// bytes.
  virtual const std::byte* of(int peer, size_t place, size_t bytes) = 0;
};

class SlotExchange : public Communicator {
 public:
  /// Longest sleep between two checks of the deadline and of the peer.
  static constexpr std::chrono::milliseconds kWaitSlice{50};

  /// Marks this rank as left: peers that wait for it raise PeerLostError at once.
  ~SlotExchange() override;
  SlotExchange(const SlotExchange&) = delete;
  SlotExchange& operator=(const SlotExchange&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return memory_.layout().size; }
  size_t capacity() const override { return capacity_; }
  size_t longest() const override { return kLongSlotBytes / 2; }
  void make_room(size_t bytes) override;
  int in_flight() const override { return memory_.layout().slots; }

  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override;
  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override;
  void post(const Deadline& deadline) override;
  Message receive(int peer, const Deadline& deadline) override;
  Message peek(int peer, const Deadline& deadline) override;
  void release(int peer) override;
  void abort(const Failure& cause) override;
  void begin_call() override;
  void expect(int peer, size_t bytes) override;
  std::optional<Failure> failure() override;
  std::optional<PeerFingerprint> compare_call(const Fingerprint& fingerprint) override;
  void forget_call(uint64_t number) override;
  void finish_call(uint64_t number) override;
  bool sees_ended() const override { return true; }
  std::vector<int> ended_peers(uint64_t number) override;

 protected:
  /// `owner` keeps the memory alive for as long as this object needs it.
  SlotExchange(std::shared_ptr<void> owner, const SlotMemory& memory, int rank,
               std::unique_ptr<LongSlots> long_slots);

  /// True if the process of `peer` still runs, or may run. Called while waiting, about once
  /// per kWaitSlice.
  virtual bool peer_alive(int peer) { return peer >= 0; }

  const SlotMemory& memory() const { return memory_; }

 private:
  friend struct SlotExchangeTestAccess;

  /// A message of the exchange that is open, or of one that is in flight.
  struct PostedMessage {
    int peer;
    uint64_t number;  // in its pair, from 1
    uint64_t offset;
    uint64_t bytes;
  };

  struct ReadMessages {
    uint64_t taken = 0;     // messages of the peer that were received
    bool shown = false;     // the last of them is not released yet
    uint64_t expected = 0;  // messages that the reader expects, up to this number
  };

  /// Throws the first failure of the group, if there is one, and an error in a forked child.
  void check_usable();
  [[noreturn]] void fail(FailureKind kind, const std::string& text);
  bool publish(const Failure& failure);
  Failure published_failure() const;

  /// Waits until `ready` holds; `what` completes "rank 0 waited 1.2 s for ...".
  template <typename Ready>
  void wait_for(int peer, const char* what, const Deadline& deadline, Ready ready);
  template <typename Ready>
  bool spin(int peer, Ready ready, Deadline::Clock::time_point start);
  /// Keeps this rank's thread off the core of the peer that it waits for.
  void part_from(int peer);
  /// Called after a wait that slept: adapts the spinning time of the next wait.
  void slept(std::chrono::nanoseconds waited);
  void ring(int peer);
  /// " (silent: rank 1, 3)": all ranks that owe this one a message, if they are more than one.
  std::string silent_ranks() const;
  void begin_exchange(const Deadline& deadline);
  /// Memory for the messages of the exchange that has begun, `bytes` in all (with paddings:
  /// `padded`), and the offset that readers find it at.
  std::pair<std::byte*, uint64_t> place(size_t bytes, size_t padded);
  /// Null where a message cannot lie there.
  const std::byte* message_at(int peer, uint64_t offset, uint64_t bytes);
  /// The slot that the next exchange uses.
  size_t slot() const { return exchange_ % static_cast<uint64_t>(memory_.layout().slots); }

  std::shared_ptr<void> owner_;
  SlotMemory memory_;
  int rank_;
  std::unique_ptr<LongSlots> long_slots_;
  size_t capacity_;
  uint64_t process_;
  bool crowded_;
  OwnCore own_core_;
  std::chrono::nanoseconds spin_limit_;
  std::chrono::nanoseconds spin_;  // how long the next wait spins, at most

  uint64_t exchange_ = 0;  // posted so far; the next one uses slot()
  bool open_ = false;
  std::vector<PostedMessage> opened_;
  std::vector<PostedMessage> in_flight_[kMaxSlots];
  std::vector<uint64_t> sent_;  // messages to each peer so far
  std::vector<ReadMessages> seen_;
  std::optional<Failure> first_failure_;
};

}  // namespace cgx
