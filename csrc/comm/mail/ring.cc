#include "comm/mail/ring.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace cgx {
namespace {

// Of a packet with so many bytes behind its header.
size_t packet_bytes(size_t payload) {
  return kMailUnit + (payload + kMailUnit - 1) / kMailUnit * kMailUnit;
}

size_t payload_of(const MailPacket& packet) {
  return packet.kind == MailPacket::kAnnounce ? 0 : packet.bytes;
}

// The payload at `position` of the stream lies in one part, or in two.
struct Parts {
  size_t begin, first, second;
};
Parts parts_of(uint64_t position, size_t bytes) {
  const size_t begin = position % kMailRingBytes;
  const size_t first = std::min(bytes, kMailRingBytes - begin);
  return {begin, first, bytes - first};
}

[[noreturn]] void damaged(const std::string& what) {
  throw MismatchError("messages between ranks: " + what + ": the shared memory is damaged");
}

}  // namespace

void RingWriter::look() {
  const uint64_t consumed = ring_.consumed.load(std::memory_order_seq_cst);
  if (consumed < consumed_ || consumed > posted_ || consumed % kMailUnit != 0) {
    damaged(str_of(consumed, " bytes were read, ", posted_, " were sent"));
  }
  consumed_ = consumed;
}

bool RingWriter::has_room(size_t payload) {
  const size_t bytes = packet_bytes(payload);
  if (fits(bytes)) return true;
  look();
  if (fits(bytes)) return true;
  if (ring_.wants_room.load(std::memory_order_relaxed) != 0) return false;
  // Sequentially consistent, as is what the receiver does: it sees the wish, or this side the room.
  ring_.wants_room.store(1, std::memory_order_seq_cst);
  look();
  return fits(bytes);
}

void RingWriter::write(const MailPacket& packet, const std::byte* payload, size_t bytes) {
  std::memcpy(ring_.data + posted_ % kMailRingBytes, &packet, sizeof packet);
  if (bytes > 0) {
    const Parts parts = parts_of(posted_ + kMailUnit, bytes);
    std::memcpy(ring_.data + parts.begin, payload, parts.first);
    if (parts.second > 0) std::memcpy(ring_.data, payload + parts.first, parts.second);
  }
  posted_ += packet_bytes(bytes);
  ring_.posted.store(posted_, std::memory_order_seq_cst);
}

bool RingWriter::next_grant(uint64_t& id) {
  const uint64_t granted = ring_.granted.load(std::memory_order_seq_cst);
  if (granted == granted_) return false;
  if (granted < granted_ || granted - granted_ > kMailGrants) {
    damaged(str_of(granted, " messages were granted after ", granted_));
  }
  id = ring_.grants[granted_ % kMailGrants].load(std::memory_order_relaxed);
  ++granted_;
  return true;
}

bool RingReader::peek(MailPacket& packet) {
  if (posted_ == consumed_) {
    posted_ = ring_.posted.load(std::memory_order_seq_cst);
    if (posted_ == consumed_) return false;
  }
  const uint64_t available = posted_ - consumed_;
  if (available > kMailRingBytes || available % kMailUnit != 0) {
    damaged(str_of(posted_, " bytes were sent, ", consumed_, " were read"));
  }
  std::memcpy(&packet, ring_.data + consumed_ % kMailRingBytes, sizeof packet);
  const bool piece = packet.kind == MailPacket::kPiece;
  const bool known = piece || packet.kind == MailPacket::kMessage ||
                     packet.kind == MailPacket::kAnnounce;
  const size_t payload = payload_of(packet);
  if (!known || packet.tag < 0 || payload > (piece ? kMailPiece : kMailAtOnce) ||
      packet_bytes(payload) > available || (piece && payload == 0)) {
    damaged(str_of("a packet of kind ", packet.kind, " with tag ", packet.tag, " and ",
                   packet.bytes, " bytes, of ", available, " in the ring"));
  }
  return true;
}

void RingReader::read(const MailPacket& packet, std::byte* to) const {
  const size_t bytes = payload_of(packet);
  if (bytes == 0) return;
  const Parts parts = parts_of(consumed_ + kMailUnit, bytes);
  std::memcpy(to, ring_.data + parts.begin, parts.first);
  if (parts.second > 0) std::memcpy(to + parts.first, ring_.data, parts.second);
}

bool RingReader::consume(const MailPacket& packet) {
  consumed_ += packet_bytes(payload_of(packet));
  ring_.consumed.store(consumed_, std::memory_order_seq_cst);
  if (ring_.wants_room.load(std::memory_order_seq_cst) == 0) return false;
  ring_.wants_room.store(0, std::memory_order_relaxed);
  return true;
}

void RingReader::grant(uint64_t id) {
  ring_.grants[granted_ % kMailGrants].store(id, std::memory_order_relaxed);
  ring_.granted.store(++granted_, std::memory_order_seq_cst);
}

}  // namespace cgx
