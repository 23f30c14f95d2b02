#include "comm/shm/communicator.h"

#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "comm/arguments.h"
#include "comm/failure.h"
#include "comm/process_token.h"
#include "comm/shm/area.h"
#include "comm/shm/long_slots.h"
#include "comm/shm/slot_mail.h"
#include "comm/shm/slots.h"

namespace cgx {
namespace {

// Many groups only ever send short messages. What a group needs beyond this, each slot takes when
// its first longer exchange comes.
constexpr size_t kFirstSlotBytes = size_t{64} << 10;

// Keys of the rendezvous. Values are "ok" and an argument, or "error" and a packed failure.
constexpr const char* kAreaKey = "shm/area";    // by rank 0: the area's address
constexpr const char* kNameKey = "shm/name";    // by rank 0, for ranks that need a name to reach it
constexpr const char* kStartKey = "shm/start";  // by rank 0: all have attached, no name is left
constexpr const char* kNeedsName = "needs a name";
std::string attached_key(int rank) { return str_of("shm/attached/", rank); }
std::string named_key(int rank) { return str_of("shm/attached by name/", rank); }

// Locks of our own process look free; ranks that are threads of it live as long as we do.
bool alive_in(const ShmArea& area, const SlotMemory& memory, int peer) {
  if (memory.rank(peer).process.load(std::memory_order_relaxed) == process_token()) return true;
  return area.locked_elsewhere(peer);
}

class ShmMail final : public SlotMail {
 public:
  ShmMail(const std::shared_ptr<ShmArea>& area, const SlotMemory& memory, int rank)
      : SlotMail(area, memory, rank), area_(area), places_(memory.layout()) {}

  bool alive(int peer) override { return alive_in(*area_, memory(), peer); }

 protected:
  std::byte* take(int to) override {
    const size_t offset = offset_of(rank(), to);
    area_->take(offset, sizeof(MailRing));
    ranges_.push_back(area_->map(offset, sizeof(MailRing)));
    return ranges_.back()->data();
  }
  std::byte* find(int from) override {
    std::unique_ptr<ShmRange> range = area_->map(offset_of(from, rank()), sizeof(MailRing));
    if (!range) return nullptr;
    ranges_.push_back(std::move(range));
    return ranges_.back()->data();
  }

 private:
  size_t offset_of(int from, int to) const {
    const size_t pair =
        static_cast<size_t>(from) * static_cast<size_t>(size()) + static_cast<size_t>(to);
    return places_.rings + pair * places_.ring_stride;
  }

  const std::shared_ptr<ShmArea> area_;
  const AreaPlaces places_;
  std::vector<std::unique_ptr<ShmRange>> ranges_;
};

class Shm final : public SlotExchange {
 public:
  Shm(std::shared_ptr<ShmArea> area, const SlotMemory& memory, int rank)
      : SlotExchange(area, memory, rank, make_shm_long_slots(area, memory.layout(), rank)),
        area_(std::move(area)) {
    area_->hold_lock(rank);
  }

  const char* name() const override { return "shm"; }
  std::unique_ptr<MailMemory> mail() override {
    return std::make_unique<ShmMail>(area_, memory(), rank());
  }

 protected:
  bool peer_alive(int peer) override { return alive_in(*area_, memory(), peer); }

 private:
  std::shared_ptr<ShmArea> area_;
};

// The other side of a set-up step: its argument, or its failure thrown here.
std::string answer(Rendezvous& rendezvous, int rank, int of, const std::string& key,
                   const char* what, const Deadline& deadline) {
  const Deadline started;
  std::string value;
  try {
    value = rendezvous.get(key, deadline);
  } catch (const TimeoutError& error) {
    throw TimeoutError(str_of("rank ", rank, " waited ", started.elapsed_text(), " for rank ", of,
                              " to ", what, " (shared memory set-up): ", error.what()));
  }
  if (value.rfind("ok ", 0) == 0) return value.substr(3);
  if (value.rfind("error ", 0) != 0) {
    throw MismatchError(
        str_of("rank ", rank, ": key ", key, " holds \"", value, "\", expected ok or error"));
  }
  Failure failure = unpack_failure(value.substr(6));
  failure.text =
      str_of("rank ", rank, ": set-up of shared memory failed on rank ", of, ": ", failure.text);
  throw_failure(failure);
}

void tell(Rendezvous& rendezvous, const std::string& key, const std::exception& error) {
  try {
    rendezvous.set(key, "error " + pack_failure(failure_of(error)));
  } catch (const std::exception&) {
    // The others will find out at their deadline; the first error is the one to report here.
  }
}

std::unique_ptr<Communicator> lead(Rendezvous& rendezvous, const SlotLayout& layout,
                                   const Deadline& deadline) {
  std::shared_ptr<ShmArea> area;
  bool announced = false;
  try {
    area = ShmArea::create(layout.total_bytes);
    SlotMemory memory(area->data(), layout);
    memory.format();
    auto comm = std::make_unique<Shm>(area, memory, 0);
    rendezvous.set(kAreaKey, "ok " + area->address());
    announced = true;
    // A little less time than the others have, so that they still receive the missing rank's
    // number.
    const Deadline sooner = Deadline::after(deadline.left() / 4 * 3);
    std::vector<int> strangers;
    for (int peer = 1; peer < layout.size; ++peer) {
      if (answer(rendezvous, 0, peer, attached_key(peer), "attach", sooner) != kNeedsName) continue;
      if (strangers.empty()) {
        area->give_name();
        rendezvous.set(kNameKey, "ok " + area->address());
      }
      strangers.push_back(peer);
    }
    for (int peer : strangers) answer(rendezvous, 0, peer, named_key(peer), "attach", sooner);
    area->unlink();
    rendezvous.set(kStartKey, "ok ");
    return comm;
  } catch (const std::exception& error) {
    // Errors before unlink(): a rank that does not find the name can look up the reason.
    if (announced) tell(rendezvous, kNameKey, error);
    tell(rendezvous, announced ? kStartKey : kAreaKey, error);
    if (area) area->unlink();
    throw;
  }
}

void check_header(const ShmArea& area, int rank, const SlotLayout& layout) {
  if (area.bytes() < sizeof(SlotHeader)) {
    throw MismatchError(str_of("rank ", rank, ": the area has ", area.bytes(), " bytes, expected ",
                               layout.total_bytes));
  }
  const SlotHeader& header = *reinterpret_cast<const SlotHeader*>(area.data());
  if (header.magic != kSlotMagic || header.version != kSlotVersion) {
    throw MismatchError(str_of("rank ", rank, ": the area of rank 0 has magic ", header.magic,
                               " version ", header.version, ", expected ", kSlotMagic, " version ",
                               kSlotVersion, ": do all ranks run the same torch_cgx?"));
  }
  if (header.size != static_cast<uint32_t>(layout.size) || header.capacity != layout.capacity ||
      header.slot_bytes != layout.slot_bytes || area.bytes() != layout.total_bytes) {
    throw MismatchError(str_of("rank 0 has world size ", header.size, " and slots of ",
                               header.capacity, " bytes in an area of ", area.bytes(), ", rank ",
                               rank, " has world size ", layout.size, " and slots of ",
                               layout.capacity, " bytes in an area of ", layout.total_bytes,
                               ": CGX_SHM_SEGMENT_KB must be equal on all ranks"));
  }
}

// Opens what rank 0 has announced under `key`. If another rank has failed already, its name may be
// gone: then that failure is the cause.
std::shared_ptr<ShmArea> open_announced(Rendezvous& rendezvous, int rank, const char* key,
                                        const char* what, const Deadline& deadline) {
  const std::string address = answer(rendezvous, rank, 0, key, what, deadline);
  try {
    return ShmArea::open(address);
  } catch (const ResourceError&) {
    bool known = true;
    try {
      rendezvous.get(kStartKey, Deadline::after(std::chrono::milliseconds(50)));
    } catch (const TimeoutError&) {
      known = false;
    }
    if (known) answer(rendezvous, rank, 0, kStartKey, "see all ranks attached", deadline);
    throw;
  }
}

std::unique_ptr<Communicator> follow(Rendezvous& rendezvous, int rank, const SlotLayout& layout,
                                     const Deadline& deadline) {
  std::shared_ptr<ShmArea> area;
  std::string key = attached_key(rank);  // what rank 0 looks at next
  bool attached = false;
  try {
    area = open_announced(rendezvous, rank, kAreaKey, "make an area", deadline);
    if (!area) {
      rendezvous.set(key, str_of("ok ", kNeedsName));
      key = named_key(rank);
      area = open_announced(rendezvous, rank, kNameKey, "name its area", deadline);
    }
    check_header(*area, rank, layout);
    auto comm = std::make_unique<Shm>(area, SlotMemory(area->data(), layout), rank);
    rendezvous.set(key, "ok ");
    attached = true;
    answer(rendezvous, rank, 0, kStartKey, "see all ranks attached", deadline);
    return comm;
  } catch (const std::exception& error) {
    if (attached) {
      area->unlink();  // rank 0 does this too, unless it is the one that died
    } else {
      tell(rendezvous, key, error);  // rank 0 cleans up after it has sent the error to all
    }
    throw;
  }
}

}  // namespace

std::unique_ptr<Communicator> make_shm_communicator(Rendezvous& rendezvous, int rank, int size,
                                                    size_t capacity, const Deadline& deadline) {
  check_rank(rank, size);
  SlotLayout layout;
  try {
    layout = SlotLayout::make(size, capacity, 2, kFirstSlotBytes);
  } catch (const std::exception& error) {
    tell(rendezvous, rank == 0 ? kAreaKey : attached_key(rank), error);
    throw;
  }
  return rank == 0 ? lead(rendezvous, layout, deadline)
                   : follow(rendezvous, rank, layout, deadline);
}

}  // namespace cgx
