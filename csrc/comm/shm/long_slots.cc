#include "comm/shm/long_slots.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cgx {
namespace {

// Memory grows by so much at least, in whole pages of any size that a kernel has.
constexpr size_t kGrain = size_t{64} << 10;

size_t whole_grains(size_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

class ShmLongSlots final : public LongSlots {
 public:
  ShmLongSlots(std::shared_ptr<ShmArea> area, const SlotLayout& layout, int rank)
      : area_(std::move(area)),
        rank_(rank),
        slots_(static_cast<size_t>(layout.slots)),
        slot_(layout.slot_bytes),
        places_(layout),
        ranges_(static_cast<size_t>(layout.size) * 2 * slots_) {}

  std::byte* own(size_t place, size_t bytes) override {
    std::unique_ptr<ShmRange>& range = range_of(rank_, place);
    const size_t had = range ? range->bytes() : 0;
    if (had < bytes) {
      const size_t wanted = grown(place, bytes);
      const size_t offset = offset_of(rank_, place);
      area_->take(offset + had, wanted - had);
      range = area_->map(offset, wanted);
    }
    return range->data();
  }

  const std::byte* of(int peer, size_t place, size_t bytes) override {
    std::unique_ptr<ShmRange>& range = range_of(peer, place);
    if (!range || range->bytes() < bytes) {
      if (is_short(place) && bytes > places_.full) return nullptr;
      range = area_->map(offset_of(peer, place), grown(place, bytes));
    }
    return range ? range->data() : nullptr;
  }

 private:
  // For exchanges up to the capacity. Its places lie side by side: where files are limited in
  // length (ulimit -f), they still fit.
  bool is_short(size_t place) const { return place < slots_; }

  // The length that the memory grows to for a message of `bytes` bytes: it doubles, so that few steps
  // lead to the capacity; beyond that no more than is needed. The same for owner and readers.
  size_t grown(size_t place, size_t bytes) const {
    if (!is_short(place)) return whole_grains(bytes);
    size_t to = 2 * slot_;
    while (to < bytes) to *= 2;
    return std::min(whole_grains(to), places_.full);
  }

  size_t offset_of(int rank, size_t place) const {
    const size_t first = static_cast<size_t>(rank) * slots_;
    return is_short(place) ? places_.begin + (first + place) * places_.full
                           : places_.longer_begin + (first + place - slots_) * kLongSlotBytes;
  }
  std::unique_ptr<ShmRange>& range_of(int rank, size_t place) {
    return ranges_[static_cast<size_t>(rank) * 2 * slots_ + place];
  }

  const std::shared_ptr<ShmArea> area_;
  const int rank_;
  const size_t slots_, slot_;
  const AreaPlaces places_;
  std::vector<std::unique_ptr<ShmRange>> ranges_;  // as this rank has mapped them
};

}  // namespace

AreaPlaces::AreaPlaces(const SlotLayout& layout)
    : full(whole_grains(layout.capacity + kCacheLine * (static_cast<size_t>(layout.size) + 1))),
      begin(whole_grains(layout.total_bytes)),
      rings(begin + static_cast<size_t>(layout.size) * static_cast<size_t>(layout.slots) * full),
      ring_stride(whole_grains(sizeof(MailRing))),
      longer_begin(rings + static_cast<size_t>(layout.size) * static_cast<size_t>(layout.size) *
                               ring_stride) {}

std::unique_ptr<LongSlots> make_shm_long_slots(std::shared_ptr<ShmArea> area,
                                               const SlotLayout& layout, int rank) {
  return std::make_unique<ShmLongSlots>(std::move(area), layout, rank);
}

}  // namespace cgx
