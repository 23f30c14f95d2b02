#include "comm/gpu/lockstep.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "device/growing_memory.h"

namespace cgx {
namespace {

using device::GrowingMemory;
using device::Queue;

constexpr size_t kSlots = 4;
constexpr size_t kMostBytes = size_t{1} << 47;  // sizes are added up without looking for overflow

// Memory for the payload of a message, on both sides.
size_t room_for(size_t message_bytes) {
  if (message_bytes == 0) return 0;
  return (message_bytes - Messages::kPayloadOffset + 63) / 64 * 64;
}

class Lockstep final : public Communicator {
 public:
  Lockstep(const Queue& queue, std::unique_ptr<ByteCollectives> library, size_t capacity)
      : queue_(queue),
        library_(std::move(library)),
        capacity_(capacity),
        expected_(static_cast<size_t>(library_->size())),
        taken_(static_cast<size_t>(library_->size())) {}

  ~Lockstep() override {
    try {
      // Exchanges in which this rank only sent have not been waited for yet.
      for (Slot& slot : slots_) {
        if (slot.ticket && !failure()) slot.ticket->wait();
      }
    } catch (const std::exception&) {  // the library has failed; so has what it had on the stream
    }
    queue_.finish("the last messages of a group");
  }

  int rank() const override { return library_->rank(); }
  int size() const override { return library_->size(); }
  const char* name() const override { return library_->name(); }
  size_t capacity() const override { return capacity_; }
  size_t longest() const override { return kMostBytes; }
  void make_room(size_t bytes) override {
    if (bytes > kMostBytes) Communicator::make_room(bytes);
    capacity_ = std::max(capacity_, bytes);
  }
  int in_flight() const override { return kSlots; }
  bool matches_lengths() const override { return true; }
  bool on_device() const override { return true; }
  bool has_headers() const override { return false; }
  bool lockstep() const override { return true; }
  bool through_host() const override { return false; }

  void begin_call() override {
    check_usable();
    for (std::vector<size_t>& bytes : expected_) bytes.clear();
    std::fill(taken_.begin(), taken_.end(), 0);
    first_ = exchange_;
  }
  void expect(int peer, size_t bytes) override {
    expected_[static_cast<size_t>(peer)].push_back(bytes);
  }

  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override {
    (void)deadline;
    check_usable();
    Slot& slot = begin_exchange();
    size_t all = 0;
    for (size_t p = 0; p < bytes_to.size(); ++p) {
      slot.bytes_to.push_back(room_for(bytes_to[p]));
      all += slot.bytes_to.back();
    }
    std::byte* at = room(&Slot::sent, all);
    slot.from = at;
    buffers.assign(bytes_to.size(), nullptr);
    for (size_t p = 0; p < bytes_to.size(); ++p) {
      if (bytes_to[p] > 0) buffers[p] = at - kPayloadOffset;
      at += slot.bytes_to[p];
    }
  }

  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override {
    (void)deadline;
    check_usable();
    Slot& slot = begin_exchange();
    slot.broadcast = true;
    // All ranks gather equal shares.
    size_t share = room_for(bytes);
    for (int p = 0; p < size(); ++p) share = std::max(share, coming(p));
    slot.share = share;
    slot.from = room(&Slot::sent, share);
    return bytes > 0 ? slot.from - kPayloadOffset : nullptr;
  }

  void post(const Deadline& deadline) override {
    check_usable();
    Slot& slot = slots_[exchange_ % kSlots];
    slot.place.clear();
    size_t all = 0;
    std::vector<size_t> bytes_of;
    for (int p = 0; p < size(); ++p) {
      bytes_of.push_back(p == rank() ? 0 : coming(p));
      slot.place.push_back(slot.broadcast ? slot.share * static_cast<size_t>(p) : all);
      all += bytes_of.back();
    }
    if (slot.broadcast) all = slot.share * static_cast<size_t>(size());
    slot.to = room(&Slot::received, all);
    if (!slot.broadcast) {
      slot.ticket = library_->all_to_all(slot.from, slot.bytes_to, slot.to, bytes_of, deadline);
    } else if (slot.share > 0) {
      slot.ticket = library_->all_gather(slot.from, slot.share, slot.to, deadline);
    }
    ++exchange_;
  }

  Message receive(int peer, const Deadline& deadline) override {
    (void)deadline;
    check_usable();
    const std::vector<size_t>& sizes = expected_[static_cast<size_t>(peer)];
    size_t& next = taken_[static_cast<size_t>(peer)];
    while (next < sizes.size() && sizes[next] == 0) ++next;
    if (next >= sizes.size() || first_ + next >= exchange_ || exchange_ - first_ - next > kSlots) {
      throw Error(str_of("rank ", called(rank()), ": message ", next, " of rank ", called(peer),
                         " is asked for out of its turn"));
    }
    Slot& slot = slots_[(first_ + next) % kSlots];
    if (slot.ticket) slot.ticket->wait();
    return {slot.to + slot.place[static_cast<size_t>(peer)] - kPayloadOffset, sizes[next++]};
  }

  Message peek(int peer, const Deadline& deadline) override {
    (void)deadline;
    throw Error(str_of("a message of rank ", called(peer), " over ", name(), " has no header"));
  }

  void release(int peer) override { (void)peer; }

  void abort(const Failure& cause) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = cause;
    }
    library_->abort();
  }
  std::optional<Failure> failure() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

 private:
  struct Slot {
    GrowingMemory sent{&device::allocate_device}, received{&device::allocate_device};
    bool broadcast = false;
    std::vector<size_t> bytes_to;
    size_t share = 0;  // of a broadcast
    std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::vector<size_t> place;  // by rank, in `received`
    std::unique_ptr<ByteCollectives::Ticket> ticket;
  };

  void check_usable() {
    if (auto known = failure()) throw_failure(*known);
  }

  // Room of what a peer sends in the exchange that is open.
  size_t coming(int peer) const {
    const std::vector<size_t>& sizes = expected_[static_cast<size_t>(peer)];
    const size_t number = exchange_ - first_;
    return number < sizes.size() ? room_for(sizes[number]) : 0;
  }

  // Memory of the open exchange. All slots grow together: exchanges take them in turn, so a slot that
  // grew alone would have later calls allocate for the others, and the driver may wait for the device
  // when it allocates. Exchanges under way keep what they have (GrowingMemory).
  std::byte* room(GrowingMemory Slot::* memory, size_t bytes) {
    for (Slot& slot : slots_) (slot.*memory).room(queue_, bytes);
    return (slots_[exchange_ % kSlots].*memory).room(queue_, bytes);
  }

  Slot& begin_exchange() {
    Slot& slot = slots_[exchange_ % kSlots];
    // The library may still be sending what the stream is about to overwrite.
    if (slot.ticket) slot.ticket->wait();
    slot.ticket = nullptr;
    slot.broadcast = false;
    slot.bytes_to.clear();
    slot.share = 0;
    return slot;
  }

  const Queue& queue_;
  const std::unique_ptr<ByteCollectives> library_;
  size_t capacity_;
  Slot slots_[kSlots];
  std::vector<std::vector<size_t>> expected_;  // by peer, of the call
  std::vector<size_t> taken_;
  size_t first_ = 0;  // exchange of the call
  size_t exchange_ = 0;
  std::mutex mutex_;  // guards failure_
  std::optional<Failure> failure_;
};

}  // namespace

std::unique_ptr<Communicator> make_lockstep(const Queue& queue,
                                            std::unique_ptr<ByteCollectives> library,
                                            size_t capacity) {
  return std::make_unique<Lockstep>(queue, std::move(library), capacity);
}

}  // namespace cgx
