#include "comm/shm/long_slots.h"

#include <utility>
#include <vector>

namespace cgx {
namespace {

// Memory grows by so much at least, in whole pages of any size that a kernel has.
constexpr size_t kGrain = size_t{64} << 10;

class ShmLongSlots final : public LongSlots {
 public:
  ShmLongSlots(std::shared_ptr<ShmArea> area, const SlotLayout& layout, int rank)
      : area_(std::move(area)),
        rank_(rank),
        slots_(static_cast<size_t>(layout.slots)),
        begin_((layout.total_bytes + kGrain - 1) / kGrain * kGrain),
        parts_(static_cast<size_t>(layout.size) * slots_) {}

  std::byte* own(size_t slot, size_t bytes) override {
    std::unique_ptr<ShmPart>& part = part_of(rank_, slot);
    const size_t had = part ? part->bytes() : 0;
    if (had < bytes) {
      const size_t wanted = (bytes + kGrain - 1) / kGrain * kGrain;
      const size_t place = place_of(rank_, slot);
      area_->take(place + had, wanted - had);
      part = area_->map(place, wanted);
    }
    return part->data();
  }

  const std::byte* of(int peer, size_t slot, size_t bytes) override {
    std::unique_ptr<ShmPart>& part = part_of(peer, slot);
    if (!part || part->bytes() < bytes) {
      const size_t wanted = (bytes + kGrain - 1) / kGrain * kGrain;
      part = area_->map(place_of(peer, slot), wanted);
    }
    return part ? part->data() : nullptr;
  }

 private:
  size_t index(int rank, size_t slot) const { return static_cast<size_t>(rank) * slots_ + slot; }
  size_t place_of(int rank, size_t slot) const {
    return begin_ + index(rank, slot) * kLongSlotBytes;
  }
  std::unique_ptr<ShmPart>& part_of(int rank, size_t slot) { return parts_[index(rank, slot)]; }

  const std::shared_ptr<ShmArea> area_;
  const int rank_;
  const size_t slots_, begin_;
  std::vector<std::unique_ptr<ShmPart>> parts_;  // as this rank has mapped them
};

}  // namespace

std::unique_ptr<LongSlots> make_shm_long_slots(std::shared_ptr<ShmArea> area,
                                               const SlotLayout& layout, int rank) {
  return std::make_unique<ShmLongSlots>(std::move(area), layout, rank);
}

}  // namespace cgx
