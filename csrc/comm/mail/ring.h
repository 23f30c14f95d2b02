// The two ends of a ring of packets. What the other side has written is checked before use:
// MismatchError. One thread at a time each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/mail/memory.h"

namespace cgx {

class RingWriter {
 public:
  explicit RingWriter(MailRing& ring) : ring_(ring) {}

  /// Room for a packet with so many bytes. Where there is none, the receiver rings when it has read
  /// more.
  bool has_room(size_t payload);
  /// There must be room. The receiver sees it at once.
  void write(const MailPacket& packet, const std::byte* payload, size_t bytes);
  /// Takes the next message that the receiver has granted. False if it has granted no other.
  bool next_grant(uint64_t& id);

 private:
  bool fits(size_t bytes) const { return bytes <= kMailRingBytes - (posted_ - consumed_); }
  void look();

  MailRing& ring_;
  uint64_t posted_ = 0, consumed_ = 0, granted_ = 0;  // as this side has seen or written them
};

class RingReader {
 public:
  explicit RingReader(MailRing& ring) : ring_(ring) {}

  /// Shows the next packet once it is whole. False if none is.
  bool peek(MailPacket& packet);
  /// Copies its payload.
  void read(const MailPacket& packet, std::byte* to) const;
  /// True: the sender waits for the room.
  bool consume(const MailPacket& packet);
  void grant(uint64_t id);

 private:
  MailRing& ring_;
  uint64_t posted_ = 0, consumed_ = 0, granted_ = 0;
};

}  // namespace cgx
