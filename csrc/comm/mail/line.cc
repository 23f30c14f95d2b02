#include "comm/mail/line.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/futex.h"

namespace cgx {
namespace {

// What pull() reads, about, before others have their turn.
constexpr size_t kPullBytes = size_t{128} << 10;

MailPacket packet_of(MailPacket::Kind kind, const MailTransfer& transfer, uint64_t id,
                     uint64_t bytes) {
  MailPacket packet;
  packet.kind = kind;
  packet.type = transfer.shape.type;
  packet.tag = transfer.tag;
  packet.id = id;
  packet.values = transfer.shape.values;
  packet.bytes = bytes;
  return packet;
}

}  // namespace

void MailDesk::end(const MailTransferPtr& transfer, std::optional<Failure> failure) {
  transfer->end(std::move(failure));
  --pending;
  ended.push_back(transfer);
}

void MailDesk::ring(int peer) const {
  MailRank& state = memory.state(peer);
  // Sequentially consistent with the change made before and with the sleeper's "set sleeps, look
  // again": one of the two sides sees the other.
  if (state.sleeps.load(std::memory_order_seq_cst) == 0) return;
  state.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(state.bell);
}

void MailLine::damaged(const std::string& what) const {
  throw MismatchError(str_of("messages from rank ", peer_, " to rank ", desk_.memory.rank(), ": ",
                             what, ": the shared memory is damaged"));
}

void MailLine::send(const MailTransferPtr& transfer) {
  if (!writer_) writer_.emplace(desk_.memory.own(peer_));
  ++desk_.pending;
  waiting_.push_back(transfer);
}

bool MailLine::take_grants() {
  bool taken = false;
  for (uint64_t id = 0; writer_->next_grant(id); taken = true) {
    const auto found = std::find_if(announced_.begin(), announced_.end(),
                                    [id](const Numbered& one) { return one.id == id; });
    if (found == announced_.end()) damaged(str_of("message ", id, " was granted"));
    streaming_.push_back(std::move(*found));
    announced_.erase(found);
  }
  return taken;
}

bool MailLine::introduce() {
  const MailTransferPtr& next = waiting_.front();
  const uint64_t bytes = next->shape.bytes;
  const bool at_once = bytes <= kMailAtOnce;
  const size_t payload = at_once ? bytes : 0;
  if (!writer_->has_room(payload)) return false;
  const auto kind = at_once ? MailPacket::kMessage : MailPacket::kAnnounce;
  writer_->write(packet_of(kind, *next, ++last_id_, bytes), next->data, payload);
  if (at_once) {
    next->count(bytes);
    desk_.end(next);
  } else {
    announced_.push_back({last_id_, next});
  }
  waiting_.pop_front();
  return true;
}

bool MailLine::send_piece() {
  const auto& [id, transfer] = streaming_.front();
  const uint64_t moved = transfer->moved();
  const auto bytes = std::min<uint64_t>(transfer->shape.bytes - moved, kMailPiece);
  if (!writer_->has_room(bytes)) return false;
  writer_->write(packet_of(MailPacket::kPiece, *transfer, id, bytes), transfer->data + moved,
                 bytes);
  transfer->count(bytes);
  if (transfer->moved() == transfer->shape.bytes) {
    desk_.end(transfer);
    streaming_.pop_front();
  }
  return true;
}

bool MailLine::push() {
  if (!sends()) return false;
  bool moved = false;
  if (!announced_.empty()) moved = take_grants();
  bool sent = false;
  for (bool more = true; more && (!waiting_.empty() || !streaming_.empty());) {
    const bool piece = waiting_.empty() || (piece_next_ && !streaming_.empty());
    const bool done = piece ? send_piece() : introduce();
    if (done) {
      piece_next_ = !piece;
      desk_.ring(peer_);
    }
    sent |= done;
    more = done && !piece;
  }
  return moved || sent;
}

bool MailLine::pull() {
  if (!reader_) {
    if (!wanted()) return false;
    MailRing* ring = desk_.memory.of(peer_);
    if (ring == nullptr) return false;
    reader_.emplace(*ring);
  }
  MailPacket packet;
  size_t read = 0;
  while (read < kPullBytes && !desk_.broken && wanted() && reader_->peek(packet)) {
    if (!receive(packet)) break;
    read += kMailUnit + packet.bytes;
    if (reader_->consume(packet)) desk_.ring(peer_);
  }
  return read > 0;
}

bool MailLine::receive(const MailPacket& packet) {
  if (packet.kind == MailPacket::kPiece) {
    receive_piece(packet);
    return true;
  }
  const bool at_once = packet.kind == MailPacket::kMessage;
  if (!at_once && packet.bytes <= kMailAtOnce) {
    damaged(str_of("a message of ", packet.bytes, " bytes was announced"));
  }
  const MailTransferPtr receive = desk_.matching.take(peer_, packet.tag);
  if (!receive) {
    Matching::Kept kept{peer_, packet, nullptr};
    if (at_once && packet.bytes > 0) {
      kept.payload = std::make_unique_for_overwrite<std::byte[]>(packet.bytes);
      reader_->read(packet, kept.payload.get());
    }
    desk_.matching.keep(std::move(kept));
    return true;
  }
  if (!fits(receive, packet)) return false;
  if (!at_once) {
    accept(packet.id, receive);
    return true;
  }
  reader_->read(packet, receive->data);
  receive->count(packet.bytes);
  desk_.end(receive);
  return true;
}

void MailLine::receive_piece(const MailPacket& packet) {
  if (granted_.empty() || granted_.front().id != packet.id) {
    damaged(str_of("a piece of message ", packet.id, " came"));
  }
  const MailTransferPtr& transfer = granted_.front().transfer;
  const uint64_t moved = transfer->moved();
  if (packet.bytes > transfer->shape.bytes - moved) {
    damaged(str_of("a piece of ", packet.bytes, " bytes came after ", moved, " of ",
                   transfer->shape.bytes));
  }
  reader_->read(packet, transfer->data + moved);
  transfer->count(packet.bytes);
  if (transfer->moved() < transfer->shape.bytes) return;
  desk_.end(transfer);
  granted_.pop_front();
  if (ungranted_.empty()) return;
  const Numbered next = std::move(ungranted_.front());
  ungranted_.pop_front();
  accept(next.id, next.transfer);
}

bool MailLine::fits(const MailTransferPtr& receive, const MailPacket& packet) {
  receive->matched(peer_);
  const MailShape sent{packet.type, packet.values, packet.bytes};
  if (sent == receive->shape) return true;
  desk_.broken = Failure{FailureKind::kMismatch, desk_.disagreement(peer_, sent, *receive)};
  desk_.broken_by = receive;
  return false;
}

void MailLine::accept(uint64_t id, const MailTransferPtr& receive) {
  if (granted_.size() >= kMailGrants) {
    ungranted_.push_back({id, receive});
    return;
  }
  granted_.push_back({id, receive});
  reader_->grant(id);
  desk_.ring(peer_);
}

void MailLine::take(const MailTransferPtr& receive, Matching::Kept message) {
  if (!fits(receive, message.packet)) return;
  if (message.packet.kind == MailPacket::kAnnounce) return accept(message.packet.id, receive);
  std::copy_n(message.payload.get(), message.packet.bytes, receive->data);
  receive->count(message.packet.bytes);
  desk_.end(receive);
}

MailTransferPtr MailLine::first() const {
  if (!granted_.empty()) return granted_.front().transfer;
  if (!ungranted_.empty()) return ungranted_.front().transfer;
  if (!streaming_.empty()) return streaming_.front().transfer;
  if (!announced_.empty()) return announced_.front().transfer;
  return waiting_.empty() ? nullptr : waiting_.front();
}

void MailLine::clear(std::vector<MailTransferPtr>& all) {
  for (auto* list : {&granted_, &ungranted_, &streaming_, &announced_}) {
    for (Numbered& one : *list) all.push_back(std::move(one.transfer));
    list->clear();
  }
  all.insert(all.end(), waiting_.begin(), waiting_.end());
  waiting_.clear();
}

}  // namespace cgx
