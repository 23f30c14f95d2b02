#include "reduce/exchange.h"

#include "codec/finite.h"

namespace cgx {

uint8_t flags_of(const Call& call) {
  return call.met_nonfinite ? MessageHeader::kNonFinite : uint8_t{0};
}

std::byte* open_broadcast(Call& call, const Chunk& chunk) {
  ScopedTimer timer(call.stats.transfer_ns);
  const size_t peers = static_cast<size_t>(call.comm.size() - 1);
  call.stats.bytes_sent += peers * (chunk.message_bytes() + call.comm.frame_bytes());
  call.stats.messages_sent += peers;
  return call.comm.open_broadcast(chunk.message_bytes(), call.deadline);
}

void post(Call& call) {
  ScopedTimer timer(call.stats.transfer_ns);
  call.comm.post(call.deadline);
}

const std::byte* receive(Call& call, int peer, size_t round, const Chunk& chunk) {
  ScopedTimer timer(call.stats.transfer_ns);
  // A peer in another call may stop before it has sent the rest of its message.
  check_call(call.comm.peek(peer, call.deadline), call.identity, round, peer);
  const Message message = call.comm.receive(peer, call.deadline);
  const uint8_t flags = check_header(message, call.identity, round, peer, chunk.payload_bytes);
  call.stats.bytes_received += message.bytes + call.comm.frame_bytes();
  if (flags & MessageHeader::kNonFinite) call.met_nonfinite = true;
  return message.data + Communicator::kPayloadOffset;
}

void expect(Call& call, const std::vector<int>& peers) { call.comm.expect(peers); }

std::vector<int> other_ranks(const Call& call) {
  std::vector<int> ranks;
  for (int p = 0; p < call.comm.size(); ++p) {
    if (p != call.comm.rank()) ranks.push_back(p);
  }
  return ranks;
}

void check_input(Call& call, const void* data, size_t values) {
  if (call.nonfinite == NonFinite::kRaise && !all_finite(data, call.plan.dtype, values)) {
    call.met_nonfinite = true;
  }
}

}  // namespace cgx
