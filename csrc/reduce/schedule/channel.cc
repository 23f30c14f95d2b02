#include "reduce/schedule/channel.h"

#include <cstring>
#include <string>

#include "base/crc32c.h"
#include "base/error.h"

namespace cgx {
namespace {

// What stands after a payload under CGX_CHECKSUM=1: the CRC-32C of header and payload, twice.
uint64_t checksum_of(const std::byte* message, size_t bytes) {
  const uint64_t crc = crc32c(message, bytes);
  return crc << 32 | crc;
}

}  // namespace

size_t Channel::message_bytes(size_t payload_bytes) const {
  if (payload_bytes == 0) return 0;
  return Messages::kPayloadOffset + payload_bytes + (call_.identity.checksum ? kChecksumBytes : 0);
}

Channel::Channel(Call& call, Messages& comm, std::vector<int> members, bool across)
    : call_(call),
      comm_(comm),
      members_(std::move(members)),
      across_(across),
      incoming_(static_cast<size_t>(comm.size())),
      announced_(static_cast<size_t>(comm.size())) {
  for (int step = 1; step < comm_.size(); ++step) {
    peers_.push_back((comm_.rank() + step) % comm_.size());
  }
  sources_.assign(peers_.rbegin(), peers_.rend());
}

void Channel::will_receive(int peer, size_t payload_bytes, bool at_once) {
  if (payload_bytes == 0 && !comm_.lockstep()) return;
  PeerMessages& in = incoming_[static_cast<size_t>(peer)];
  if (in.payloads.empty()) in.at_once = at_once;
  in.payloads.push_back(payload_bytes);
}

void Channel::begin() {
  comm_.begin_call();
  for (int p : sources_) {
    PeerMessages& in = incoming_[static_cast<size_t>(p)];
    if (comm_.matches_lengths()) {
      for (size_t payload : in.payloads) comm_.expect(p, message_bytes(payload));
      in.expected = true;
      continue;
    }
    if (!in.at_once) continue;  // the communicator may wait for what it expects
    comm_.expect(p, message_bytes(in.payloads.front()));
    in.expected = true;
  }
}

void Channel::compare_values(std::vector<uint64_t> sent, std::vector<uint64_t> received) {
  sent_values_ = std::move(sent);
  received_values_ = std::move(received);
}

CallIdentity Channel::identity_of(const std::vector<uint64_t>& values, int peer) const {
  CallIdentity identity = call_.identity;
  if (!values.empty()) identity.values = values[static_cast<size_t>(peer)];
  return identity;
}

void Channel::count_sent(int peer, size_t payload_bytes) {
  const auto to = static_cast<size_t>(peer);
  const bool frame = !comm_.announces() || !announced_[to];
  announced_[to] = true;
  const size_t bytes = message_bytes(payload_bytes) + (frame ? comm_.frame_bytes() : 0);
  call_.stats.bytes_sent += bytes;
  if (across_) call_.stats.bytes_sent_across += bytes;
  call_.stats.messages_sent += 1;
}

std::byte* Channel::open_broadcast(size_t payload_bytes) {
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  opened_.clear();
  std::byte* message = comm_.open_broadcast(message_bytes(payload_bytes), call_.deadline);
  if (payload_bytes == 0) return nullptr;
  for (int p : peers_) count_sent(p, payload_bytes);
  opened_.push_back({message, payload_bytes, -1});
  return message + Messages::kPayloadOffset;
}

const std::vector<std::byte*>& Channel::open(const std::vector<size_t>& payload_bytes) {
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  opened_.clear();
  bytes_to_.assign(payload_bytes.size(), 0);
  for (int p : peers_) {
    const auto to = static_cast<size_t>(p);
    bytes_to_[to] = message_bytes(payload_bytes[to]);
    if (bytes_to_[to] > 0) count_sent(p, payload_bytes[to]);
  }
  comm_.open(bytes_to_, buffers_, call_.deadline);
  for (size_t p = 0; p < buffers_.size(); ++p) {
    if (buffers_[p] == nullptr) continue;
    opened_.push_back({buffers_[p], payload_bytes[p], static_cast<int>(p)});
    buffers_[p] += Messages::kPayloadOffset;
  }
  return buffers_;
}

void Channel::post(size_t round) {
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  const auto flags = static_cast<uint8_t>(call_.met_nonfinite ? MessageHeader::kNonFinite : 0);
  if (call_.identity.checksum) comm_.fetch(call_.deadline);
  for (const auto& [message, payload_bytes, peer] : opened_) {
    if (!comm_.has_headers()) break;
    std::byte* header = comm_.header_of(message);
    write_header(header, identity_of(sent_values_, peer < 0 ? peers_.front() : peer), round,
                 payload_bytes, flags);
    if (!call_.identity.checksum) continue;
    const size_t covered = Messages::kPayloadOffset + payload_bytes;
    const uint64_t sum = checksum_of(header, covered);
    std::memcpy(header + covered, &sum, sizeof sum);
  }
  comm_.post(call_.deadline);
}

void Channel::post_nothing(size_t round, bool broadcast) {
  if (!comm_.lockstep()) return;
  if (broadcast) {
    open_broadcast(0);
  } else {
    open(std::vector<size_t>(static_cast<size_t>(comm_.size())));
  }
  post(round);
}

void Channel::verify_first(int peer, size_t round) {
  PeerMessages& in = incoming_[static_cast<size_t>(peer)];
  if (in.verified || !comm_.has_headers()) return;
  if (!in.expected) comm_.expect(peer, message_bytes(in.payloads.front()));
  in.expected = true;
  // A peer in another call may stop before it has sent the rest of its message.
  check_call(comm_.peek(peer, call_.deadline), identity_of(received_values_, peer), round,
             members_[static_cast<size_t>(peer)]);
  in.verified = true;
  if (comm_.matches_lengths()) return;
  for (size_t i = 1; i < in.payloads.size(); ++i) {
    comm_.expect(peer, message_bytes(in.payloads[i]));
  }
}

void Channel::look_at_first() {
  if (!comm_.announces() || comm_.matches_lengths()) return;
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  for (int p : peers_) {
    if (incoming_[static_cast<size_t>(p)].at_once) verify_first(p, 0);
  }
}

Message Channel::without_checksum(const Message& message, int peer) const {
  if (!call_.identity.checksum) return message;
  const std::string who = str_of("rank ", call_.identity.rank, ": message of rank ",
                                 members_[static_cast<size_t>(peer)], ", ", message.bytes,
                                 " bytes over ", comm_.name());
  if (message.bytes < Messages::kPayloadOffset + kChecksumBytes) {
    throw MismatchError(str_of(who, ", was truncated: it has no room for header and checksum"));
  }
  const size_t covered = message.bytes - kChecksumBytes;
  uint64_t told = 0;
  std::memcpy(&told, message.header() + covered, sizeof told);
  const uint64_t found = checksum_of(message.header(), covered);
  if (told != found) {
    throw MismatchError(str_of(who, ", was altered on its way: its checksum is ", std::hex, found,
                               ", it was sent with ", told, " (CGX_CHECKSUM=1)"));
  }
  return {message.data, covered, message.shadow};
}

const std::byte* Channel::receive(int peer, size_t round) {
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  PeerMessages& in = incoming_[static_cast<size_t>(peer)];
  while (in.received < in.payloads.size() && in.payloads[in.received] == 0) ++in.received;
  if (in.received == in.payloads.size()) {
    throw Error(str_of("rank ", call_.identity.rank, ": a message of rank ",
                       members_[static_cast<size_t>(peer)], " was read that is not in the plan"));
  }
  verify_first(peer, round);
  const Message whole = comm_.receive(peer, call_.deadline);
  const Message message = without_checksum(whole, peer);
  const uint8_t flags =
      comm_.has_headers()
          ? check_header(message, identity_of(received_values_, peer), round,
                         members_[static_cast<size_t>(peer)], in.payloads[in.received])
          : uint8_t{0};
  const bool frame = !comm_.announces() || in.received == 0;
  call_.stats.bytes_received += whole.bytes + (frame ? comm_.frame_bytes() : 0);
  ++in.received;
  if (flags & MessageHeader::kNonFinite) {
    if (call_.nonfinite == NonFinite::kPropagate) {
      throw MismatchError(str_of("rank ", call_.identity.rank, ": message of rank ",
                                 members_[static_cast<size_t>(peer)],
                                 " says that a NaN or Inf was met, which ranks of a group with "
                                 "nonfinite='propagate' do not say: it was altered"));
    }
    call_.met_nonfinite = true;
  }
  return message.data + Messages::kPayloadOffset;
}

void Channel::release(int peer) { comm_.release(peer); }

void Channel::begin_headers() {
  comm_.begin_call();
  for (int p : sources_) comm_.expect(p, Messages::kPayloadOffset);
}

void Channel::post_headers() {
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  std::byte* message = comm_.open_broadcast(Messages::kPayloadOffset, call_.deadline);
  write_header(comm_.header_of(message), call_.identity, 0, 0, 0);
  comm_.post(call_.deadline);
  for (size_t i = 0; i < peers_.size(); ++i) {
    count_direct(Messages::kPayloadOffset + comm_.frame_bytes(), 0);
  }
}

void Channel::take_header(int peer) {
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  const int sender = members_[static_cast<size_t>(peer)];
  check_call(comm_.peek(peer, call_.deadline), call_.identity, 0, sender);
  check_header(comm_.receive(peer, call_.deadline), call_.identity, 0, sender, 0);
  comm_.release(peer);
  count_direct(0, Messages::kPayloadOffset + comm_.frame_bytes());
}

void Channel::count_direct(size_t sent, size_t received) {
  call_.stats.bytes_sent += sent;
  if (across_) call_.stats.bytes_sent_across += sent;
  call_.stats.messages_sent += sent > 0 ? 1 : 0;
  call_.stats.bytes_received += received;
}

}  // namespace cgx
