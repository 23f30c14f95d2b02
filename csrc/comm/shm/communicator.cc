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
constexpr const char* kAreaKey = "shm/area";  // by rank 0: the area's address
constexpr const char* kNameKey = "shm/name";  // by rank 0, for ranks that need a name to reach it
constexpr const char* kNeedsName = "needs a name";
// By every other rank. Each rank waits for all: with that the set-up is over.
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
    const size_t pair = static_cast<size_t>(from) * static_cast<size_t>(size()) +
                        static_cast<size_t>(to);
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
  bool peer_alive(int peer) override {
    return alive_in(*area_, memory(), peer);
  }

 private:
  std::shared_ptr<ShmArea> area_;
};

// What another rank says of a set-up step: its argument, or its failure thrown here.
std::string argument_of(const std::string& value, int rank, int of, const std::string& key) {
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
  return argument_of(value, rank, of, key);
}

void tell(Rendezvous& rendezvous, const std::string& key, const std::exception& error) {
  try {
    rendezvous.set(key, "error " + pack_failure(failure_of(error)));
  } catch (const std::exception&) {
    // The others will find out at their deadline; the first error is the one to report here.
  }
}

// Waits until these ranks have attached; returns the ranks that need a name for it.
std::vector<int> all_attached(Rendezvous& rendezvous, int rank, const std::vector<int>& peers,
                              std::string (*key_of)(int), const Deadline& deadline) {
  std::vector<std::string> keys, values;
  for (int peer : peers) keys.push_back(key_of(peer));
  try {
    values = rendezvous.get_all(keys, deadline);
  } catch (const TimeoutError&) {
    // Again one by one, for a rank that has failed and for the number of the one that is missing.
    for (int peer : peers) answer(rendezvous, rank, peer, key_of(peer), "attach", deadline);
    throw;
  }
  std::vector<int> strangers;
  for (size_t i = 0; i < peers.size(); ++i) {
    if (argument_of(values[i], rank, peers[i], keys[i]) == kNeedsName) {
      strangers.push_back(peers[i]);
    }
  }
  return strangers;
}

// The ranks that attach to the area of rank 0, without `but`.
std::vector<int> followers(int size, int but = 0) {
  std::vector<int> ranks;
  for (int rank = 1; rank < size; ++rank) {
    if (rank != but) ranks.push_back(rank);
  }
  return ranks;
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
    const auto strangers =
        all_attached(rendezvous, 0, followers(layout.size), attached_key, deadline);
    if (!strangers.empty()) {
      area->give_name();
      rendezvous.set(kNameKey, "ok " + area->address());
      all_attached(rendezvous, 0, strangers, named_key, deadline);
    }
    area->unlink();
    return comm;
  } catch (const std::exception& error) {
    // Before unlink(): a rank that does not find the name can look up the reason.
    tell(rendezvous, announced ? kNameKey : kAreaKey, error);
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

// Opens what rank 0 has announced under `key`.
std::shared_ptr<ShmArea> open_announced(Rendezvous& rendezvous, int rank, const char* key,
                                        const char* what, const Deadline& deadline) {
  const std::string address = answer(rendezvous, rank, 0, key, what, deadline);
  try {
    return ShmArea::open(address);
  } catch (const ResourceError&) {
    // Rank 0 has failed since, and with that removed the name: then its failure is the cause.
    std::string now;
    try {
      now = rendezvous.get(kNameKey, Deadline::after(std::chrono::milliseconds(50)));
    } catch (const TimeoutError&) {
    }
    if (!now.empty()) argument_of(now, rank, 0, kNameKey);
    throw;
  }
}

std::unique_ptr<Communicator> follow(Rendezvous& rendezvous, int rank, const SlotLayout& layout,
                                     const Deadline& deadline) {
  std::shared_ptr<ShmArea> area;
  std::string key = attached_key(rank);  // what the others look at next
  bool attached = false;
  try {
    area = open_announced(rendezvous, rank, kAreaKey, "make an area", deadline);
    std::vector<int> strangers;
    if (!area) {
      rendezvous.set(key, str_of("ok ", kNeedsName));
      key = named_key(rank);
      area = open_announced(rendezvous, rank, kNameKey, "name its area", deadline);
      strangers.push_back(rank);
    }
    check_header(*area, rank, layout);
    auto comm = std::make_unique<Shm>(area, SlotMemory(area->data(), layout), rank);
    rendezvous.set(key, "ok ");
    attached = true;
    for (int peer : all_attached(rendezvous, rank, followers(layout.size, rank), attached_key,
                                 deadline)) {
      strangers.push_back(peer);
    }
    std::erase(strangers, rank);
    all_attached(rendezvous, rank, strangers, named_key, deadline);
    area->unlink();  // whichever rank is the first: rank 0 may be killed now
    return comm;
  } catch (const std::exception& error) {
    if (attached) {
      area->unlink();  // rank 0 does this too, unless it is the one that died
    } else {
      tell(rendezvous, key, error);
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
