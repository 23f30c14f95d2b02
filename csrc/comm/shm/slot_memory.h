// Layout of the memory of a slot exchange. Only offsets, no pointers: every rank maps it at another
// address.
//
//   SlotHeader | RankState[size] | PairSent[size][size] | PairSeen[size][size] | MailRank[size]
//   | mail rings taken [size][size] | padding to a page | slots: SlotLayout::slots per rank, `stride` bytes each
//
// Only s writes PairSent[s][r], only r writes PairSeen[s][r]; each has a cache line of its own. A
// message is identified by its pair and its number in the pair (1, 2, ...), not by exchange: a rank
// that receives nothing in an exchange acknowledges nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/fingerprint.h"
#include "comm/mail/memory.h"

namespace cgx {

inline constexpr size_t kCacheLine = 64;
inline constexpr uint64_t kSlotMagic = 0x63677873'6c6f7473;  // "cgxslots"
inline constexpr uint32_t kSlotVersion = 6;
/// Exchanges that a rank can have pending.
inline constexpr int kMaxSlots = 4;
/// An exchange that does not fit into its slot lies in memory of its own beside it, which never has
/// more than kLongSlotBytes. Offsets of messages there are kLongSlot + n * kLongSlotBytes + the
/// place in that memory; n is the slot, plus the number of slots where the exchange is longer than
/// SlotLayout::capacity.
inline constexpr size_t kLongSlot = size_t{1} << 62;
inline constexpr size_t kLongSlotBytes = size_t{1} << 47;
/// Number of fingerprints that a rank keeps, of its latest collectives. A peer that lags further
/// behind compares nothing.
inline constexpr int kFingerprints = 64;

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

struct SlotHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t size;
  uint64_t capacity;
  uint64_t slot_bytes;
  uint64_t total_bytes;

  enum FailureState : uint32_t { kNone = 0, kBeingWritten = 1, kWritten = 2 };

  /// The first failure of the group. The rank that moves failure_state from kNone writes the rest.
  alignas(kCacheLine) std::atomic<uint32_t> failure_state;
  uint32_t failure_kind;
  int32_t failure_rank;
  uint32_t failure_length;
  char failure_text[1008];  // of pack_failure(), cut off where it is longer
};

struct RankState {
  enum Presence : uint32_t { kAbsent = 0, kHere = 1, kLeft = 2 };

  /// The rank sleeps on `bell`. `sleeps_for` is 1 + the peer it waits for, 0 while it is awake:
  /// peers ring the bell only of a sleeping rank.
  alignas(kCacheLine) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeps_for;

  alignas(kCacheLine) std::atomic<uint32_t> presence;
  std::atomic<uint64_t> process;  // process_token() of the rank
  std::atomic<int32_t> core;      // OwnCore::now() of its last long wait; 0: none

  /// Collective k is in calls[k % kFingerprints]. `number` is 0 while the words are being written.
  struct CallFingerprint {
    std::atomic<uint64_t> number;
    std::atomic<uint64_t> words[Fingerprint::kWords];
    std::atomic<uint64_t> finished;  // the number, once the rank has done its part
  };
  alignas(kCacheLine) CallFingerprint calls[kFingerprints];
};

struct PairSent {
  struct Posted {
    std::atomic<uint64_t> offset;  // from the start of the sender's slots
    std::atomic<uint64_t> bytes;
  };
  alignas(kCacheLine) std::atomic<uint64_t> posted;  // so far; number k is in ring[k % slots]
  Posted ring[kMaxSlots];
};

struct PairSeen {
  alignas(kCacheLine) std::atomic<uint64_t> released;  // messages so far
};

/// Sizes and offsets of one group; the same numbers on every rank.
struct SlotLayout {
  int size = 0;
  int slots = 2;          // per rank
  size_t capacity = 0;    // payload of one exchange
  size_t slot_bytes = 0;  // of which a slot holds so much; a longer one lies beside its slot
  size_t stride = 0;      // slot_bytes plus room to align one message per rank
  size_t data_offset = 0;
  size_t total_bytes = 0;

  /// Slots of `capacity` bytes, or of `most` where that is less. ConfigError for a size, capacity or
  /// most below 1, or slots outside of 2 to kMaxSlots; ResourceError where the total does not fit
  /// into an address space.
  static SlotLayout make(int size, size_t capacity, int slots = 2, size_t most = SIZE_MAX);
};

/// Typed access to the memory; copies freely, owns nothing.
class SlotMemory {
 public:
  SlotMemory(std::byte* base, const SlotLayout& layout) : base_(base), layout_(layout) {}

  /// Writes a fresh control area. The memory must be zero. Once, before any rank uses it.
  void format();

  const SlotLayout& layout() const { return layout_; }
  SlotHeader& header() const { return *reinterpret_cast<SlotHeader*>(base_); }
  RankState& rank(int rank) const {
    return reinterpret_cast<RankState*>(base_ + sizeof(SlotHeader))[rank];
  }
  PairSent& sent(int from, int to) const {
    return reinterpret_cast<PairSent*>(pairs())[index(from, to)];
  }
  PairSeen& seen(int from, int to) const {
    return reinterpret_cast<PairSeen*>(pairs() +
                                       sizeof(PairSent) * ranks() * ranks())[index(from, to)];
  }
  MailRank& mail(int rank) const { return reinterpret_cast<MailRank*>(mails())[rank]; }
  /// 1 once the ring of messages of the pair is there; `from` writes it.
  std::atomic<uint32_t>& mail_ring(int from, int to) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(mails() +
                                                    sizeof(MailRank) * ranks())[index(from, to)];
  }
  /// Start of the slots of a rank.
  std::byte* slots(int rank) const {
    return base_ + layout_.data_offset +
           static_cast<size_t>(rank) * static_cast<size_t>(layout_.slots) * layout_.stride;
  }

 private:
  std::byte* pairs() const { return base_ + sizeof(SlotHeader) + sizeof(RankState) * layout_.size; }
  std::byte* mails() const {
    return pairs() + (sizeof(PairSent) + sizeof(PairSeen)) * ranks() * ranks();
  }
  size_t ranks() const { return static_cast<size_t>(layout_.size); }
  size_t index(int from, int to) const { return static_cast<size_t>(from) * layout_.size + to; }

  std::byte* base_;
  SlotLayout layout_;
};

}  // namespace cgx
