#include "comm/shm/slot_mail.h"

#include <utility>

#include "comm/shm/slot_failure.h"

namespace cgx {

SlotMail::SlotMail(std::shared_ptr<void> owner, const SlotMemory& memory, int rank)
    : owner_(std::move(owner)),
      memory_(memory),
      rank_(rank),
      own_(static_cast<size_t>(memory.layout().size), nullptr) {}

MailRing& SlotMail::own(int to) {
  MailRing*& ring = own_[static_cast<size_t>(to)];
  if (ring == nullptr) {
    ring = reinterpret_cast<MailRing*>(take(to));
    memory_.mail_ring(rank_, to).store(1, std::memory_order_release);
  }
  return *ring;
}

MailRing* SlotMail::of(int from) {
  if (memory_.mail_ring(from, rank_).load(std::memory_order_acquire) != 1) return nullptr;
  return reinterpret_cast<MailRing*>(find(from));
}

bool SlotMail::broken() {
  return memory_.header().failure_state.load(std::memory_order_seq_cst) != SlotHeader::kNone;
}

Failure SlotMail::failure() {
  return published_failure(memory_, rank_, [](int rank) { return rank; });
}

}  // namespace cgx
