#include "comm/relay/sender.h"

#include <algorithm>
#include <cstring>

#include "comm/relay/frame.h"

namespace cgx::relay {
namespace {

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Sender::Sender(GuardedLibrary& library, RelayPool& pool, Receiver& receiver)
    : library_(library),
      pool_(pool),
      receiver_(receiver),
      sent_in_call_(static_cast<size_t>(library.size())) {}

bool Sender::cancel() {
  bool busy = false;
  for (OutgoingExchange& out : exchanges_) {
    for (OutgoingExchange::Send& send : out.sends) {
      busy = busy || (send.pending && !send.pending->done());
      send.pending.reset();
    }
  }
  return busy;
}

void Sender::abandon() {
  for (OutgoingExchange& out : exchanges_) out.buffer.abandon();
}

void Sender::begin_call() {
  sent_in_call_.assign(sent_in_call_.size(), false);
  // No rank still reads messages of the previous call.
  for (OutgoingExchange& out : exchanges_) {
    if (out.sends.empty()) pool_.give(std::move(out.buffer));
  }
}

void Sender::finish_sends(OutgoingExchange& out, const Deadline& deadline) {
  for (OutgoingExchange::Send& send : out.sends) {
    receiver_.wait_for(send.peer, "sending to", deadline, [&]() -> Pending* {
      receiver_.advance(send.peer);
      return send.pending->done() ? nullptr : send.pending.get();
    });
    library_.guarded(send.peer, "sending to", [&] { send.pending->wait(deadline); });
  }
  out.sends.clear();
}

Sender::OutgoingExchange& Sender::begin_exchange(const Deadline& deadline) {
  // Messages that were opened but not posted are dropped: no peer has seen them.
  open_ = false;
  OutgoingExchange& out = exchanges_[exchange_ % kExchanges];
  finish_sends(out, deadline);
  out.messages.clear();
  pool_.give(std::move(out.buffer));
  return out;
}

void Sender::flush(const Deadline& deadline) {
  for (OutgoingExchange& out : exchanges_) finish_sends(out, deadline);
}

void Sender::open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
                  const Deadline& deadline) {
  OutgoingExchange& out = begin_exchange(deadline);
  size_t total = 0;
  for (int step = 1; step < library_.size(); ++step) {
    const int peer = nth_peer(step);
    if (bytes_to[peer] == 0) continue;
    out.messages.push_back({peer, total, bytes_to[peer]});
    total += aligned(kFrame + bytes_to[peer]);
  }
  library_.guarded(library_.rank(), "making room for messages of",
                   [&] { out.buffer = pool_.take(total); });
  buffers.assign(static_cast<size_t>(library_.size()), nullptr);
  for (const OutgoingExchange::PeerMessage& message : out.messages)
    buffers[message.peer] = out.buffer.data() + message.offset + kFrame;
  open_ = true;
}

std::byte* Sender::open_broadcast(size_t bytes, const Deadline& deadline) {
  OutgoingExchange& out = begin_exchange(deadline);
  open_ = true;
  if (bytes == 0) return nullptr;
  for (int step = 1; step < library_.size(); ++step) {
    out.messages.push_back({nth_peer(step), 0, bytes});
  }
  library_.guarded(library_.rank(), "making room for messages of",
                   [&] { out.buffer = pool_.take(kFrame + bytes); });
  return out.buffer.data() + kFrame;
}

void Sender::post() {
  if (!open_) throw ConfigError(str_of("rank ", library_.rank(), ": post() without open()"));
  open_ = false;
  OutgoingExchange& out = exchanges_[exchange_ % kExchanges];
  if (out.messages.empty()) return;
  auto announced = [&](const OutgoingExchange::PeerMessage& message) {
    return !library_.in_call() || !sent_in_call_[message.peer];
  };
  for (const OutgoingExchange::PeerMessage& message : out.messages) {
    const uint64_t bytes = message.bytes;
    std::memcpy(out.buffer.data() + message.offset, &bytes, kFrame);
  }
  auto send = [&](int peer, int tag, const std::byte* data, size_t bytes) {
    library_.guarded(peer, "sending to", [&] {
      out.sends.push_back({peer, library_.point_to_point().send(peer, tag, data, bytes)});
    });
  };
  // All first frames before any rest: small messages do not queue behind large ones.
  for (const OutgoingExchange::PeerMessage& message : out.messages) {
    if (!announced(message)) continue;
    send(message.peer, kFirstTag, out.buffer.data() + message.offset,
         std::min(kEager, kFrame + message.bytes));
  }
  for (const OutgoingExchange::PeerMessage& message : out.messages) {
    const std::byte* frame = out.buffer.data() + message.offset;
    if (!announced(message)) {
      send(message.peer, library_.class_of(message.bytes, kAgreedTag).tag, frame + kFrame,
           message.bytes);
    } else if (kFrame + message.bytes > kEager) {
      const size_t rest = kFrame + message.bytes - kEager;
      send(message.peer, library_.class_of(rest, kRestTag).tag, frame + kEager, rest);
    }
    sent_in_call_[message.peer] = true;
  }
  ++exchange_;
}

}  // namespace cgx::relay
