// Memory of the messages between ranks that share it, and what is known of the peers.
//
// Each ordered pair of ranks has a ring, which its sender takes at its first message. A ring is a
// stream of packets: a header of 64 bytes, and a payload that is padded to 64 bytes and may go on at
// the start of the ring. Positions are bytes since the beginning, so they only grow. Only offsets
// are in shared memory: every rank maps it at another address.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/failure.h"

namespace cgx {

inline constexpr size_t kMailUnit = 64;  // bytes
inline constexpr size_t kMailRingBytes = size_t{256} << 10;
/// A message of so many bytes goes at once. A longer one is announced, and follows in pieces when
/// its receiver has granted it.
inline constexpr size_t kMailAtOnce = size_t{64} << 10;
inline constexpr size_t kMailPiece = (size_t{64} << 10) - kMailUnit;  // four packets fill a ring
/// Messages of a pair that are granted and not complete.
inline constexpr uint64_t kMailGrants = 4;

/// One per rank, in the control area of the group.
struct MailRank {
  /// Peers ring the bell of a rank that sleeps.
  alignas(kMailUnit) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeps;
  std::atomic<uint32_t> left;  // the rank has left the group; it has sent what it has sent
  std::atomic<int32_t> core;   // 1 + the core that the rank drives on, or has last; a hint
};

/// The first line is written by the sender, the second by the receiver.
struct MailRing {
  alignas(kMailUnit) std::atomic<uint64_t> posted;  // the sender has written so far
  std::atomic<uint32_t> wants_room;                 // and waits for room; the receiver resets it

  alignas(kMailUnit) std::atomic<uint64_t> consumed;  // the receiver has read so far
  std::atomic<uint64_t> granted;                      // messages so far
  std::atomic<uint64_t> grants[kMailGrants];  // the latest ones; number k in k % kMailGrants

  alignas(kMailUnit) std::byte data[kMailRingBytes];
};

struct MailPacket {
  enum Kind : uint32_t {
    kMessage = 1,   // a whole message
    kAnnounce = 2,  // without payload: a longer message
    kPiece = 3,     // of the granted message `id`, in order
  };

  uint32_t kind = 0;
  uint32_t type = 0;
  int32_t tag = 0;
  uint32_t unused = 0;
  uint64_t id = 0;  // of a message of the pair, from 1
  uint64_t values = 0;
  uint64_t bytes = 0;  // of the message; of a piece
  uint64_t reserved[3] = {};
};
static_assert(sizeof(MailPacket) == kMailUnit);

/// One rank's view. One thread at a time, except for state(), broken() and alive().
class MailMemory {
 public:
  virtual ~MailMemory() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual MailRank& state(int rank) = 0;

  /// The ring of messages from this rank to `to`, made by the first call. ResourceError.
  virtual MailRing& own(int to) = 0;
  /// The ring of messages from `from` to this rank. Null before its first message.
  virtual MailRing* of(int from) = 0;

  /// False: the process of `peer` has ended.
  virtual bool alive(int peer) = 0;
  /// A failure of the group is published.
  virtual bool broken() = 0;
  virtual Failure failure() = 0;
};

}  // namespace cgx
