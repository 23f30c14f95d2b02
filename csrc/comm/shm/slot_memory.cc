#include "comm/shm/slot_memory.h"

#include <algorithm>
#include <new>

#include "base/error.h"

namespace cgx {
namespace {

constexpr size_t kPage = 4096;
constexpr int kMaxSize = 4096;  // the control area grows with the square

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

}  // namespace

SlotLayout SlotLayout::make(int size, size_t capacity, int slots, size_t most) {
  if (size < 1 || size > kMaxSize) {
    throw ConfigError(
        str_of("world size is ", size, ", allowed for shared slots: 1 to ", kMaxSize));
  }
  const size_t slot_bytes = std::min(capacity, most);
  if (slot_bytes < 1) throw ConfigError("slot size is 0 bytes, allowed: 1 or more");
  if (slots < 2 || slots > kMaxSlots) {
    throw ConfigError(str_of("slots per rank is ", slots, ", allowed: 2 to ", kMaxSlots));
  }
  const size_t ranks = static_cast<size_t>(size);
  const size_t control = sizeof(SlotHeader) + sizeof(RankState) * ranks +
                         sizeof(MailRank) * ranks +
                         (sizeof(PairSent) + sizeof(PairSeen) + sizeof(uint32_t)) * ranks * ranks;
  SlotLayout layout;
  layout.size = size;
  layout.slots = slots;
  layout.capacity = capacity;
  layout.slot_bytes = slot_bytes;
  layout.data_offset = round_up(control, kPage);
  const size_t room = (size_t{1} << 62) - layout.data_offset;
  const size_t padding = kCacheLine * (ranks + 1) + kPage;
  if (capacity > room / (static_cast<size_t>(slots) * ranks) - padding) {
    throw ResourceError(
        str_of("shared slots of ", capacity, " bytes for ", size,
               " ranks do not fit into an address space; use a smaller CGX_SHM_SEGMENT_KB"));
  }
  layout.stride = round_up(slot_bytes + kCacheLine * (ranks + 1), kPage);
  layout.total_bytes = layout.data_offset + static_cast<size_t>(slots) * ranks * layout.stride;
  return layout;
}

void SlotMemory::format() {
  auto* header = new (base_) SlotHeader{};
  for (int r = 0; r < layout_.size; ++r) {
    new (&rank(r)) RankState{};
    new (&mail(r)) MailRank{};
    for (int peer = 0; peer < layout_.size; ++peer) {
      new (&sent(r, peer)) PairSent{};
      new (&seen(r, peer)) PairSeen{};
      new (&mail_ring(r, peer)) std::atomic<uint32_t>{};
    }
  }
  header->version = kSlotVersion;
  header->size = static_cast<uint32_t>(layout_.size);
  header->capacity = layout_.capacity;
  header->slot_bytes = layout_.slot_bytes;
  header->total_bytes = layout_.total_bytes;
  header->magic = kSlotMagic;
}

}  // namespace cgx
