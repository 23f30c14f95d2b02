#include "comm/in_process.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "comm/arguments.h"
#include "comm/hand_over.h"
#include "comm/shm/slot_mail.h"
#include "comm/shm/slots.h"

namespace cgx {
namespace {

// Memory of long messages, by rank and slot. Its owner replaces a buffer only while no rank reads
// it, and posts messages in it afterwards.
struct SlotBuffers {
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct SlotBuffer {
    std::unique_ptr<std::byte, Free> data;
    size_t bytes = 0;
  };
  explicit SlotBuffers(size_t count) : all(count) {}
  std::vector<SlotBuffer> all;
};

class InProcessLongSlots final : public LongSlots {
 public:
  InProcessLongSlots(std::shared_ptr<SlotBuffers> buffers, int rank, int slots)
      : buffers_(std::move(buffers)),
        rank_(static_cast<size_t>(rank)),
        places_(2 * static_cast<size_t>(slots)) {}

  std::byte* own(size_t place, size_t bytes) override {
    SlotBuffers::SlotBuffer& buffer = at(rank_, place);
    if (buffer.bytes < bytes) {
      buffer = {};
      const size_t rounded = (bytes + 63) / 64 * 64;
      buffer.data.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
      if (!buffer.data) {
        throw ResourceError(str_of("cannot allocate ", rounded, " bytes for a message"));
      }
      buffer.bytes = rounded;
    }
    return buffer.data.get();
  }

  const std::byte* of(int peer, size_t place, size_t bytes) override {
    const SlotBuffers::SlotBuffer& buffer = at(static_cast<size_t>(peer), place);
    return buffer.bytes < bytes ? nullptr : buffer.data.get();
  }

 private:
  SlotBuffers::SlotBuffer& at(size_t rank, size_t place) {
    return buffers_->all[rank * places_ + place];
  }

  const std::shared_ptr<SlotBuffers> buffers_;
  const size_t rank_, places_;
};

// Rings by sender and receiver. A receiver looks at one after its sender has said that it is there.
struct MailRings {
  explicit MailRings(int size)
      : all(static_cast<size_t>(size) * static_cast<size_t>(size)), size(size) {}
  std::unique_ptr<MailRing>& at(int from, int to) {
    return all[static_cast<size_t>(from) * static_cast<size_t>(size) + static_cast<size_t>(to)];
  }
  std::vector<std::unique_ptr<MailRing>> all;
  const int size;
};

class InProcessMail final : public SlotMail {
 public:
  InProcessMail(std::shared_ptr<void> owner, const SlotMemory& memory, int rank,
                std::shared_ptr<MailRings> rings)
      : SlotMail(std::move(owner), memory, rank), rings_(std::move(rings)) {}

 protected:
  std::byte* take(int to) override {
    auto& ring = rings_->at(rank(), to);
    ring = std::make_unique<MailRing>();
    return reinterpret_cast<std::byte*>(ring.get());
  }
  std::byte* find(int from) override {
    return reinterpret_cast<std::byte*>(rings_->at(from, rank()).get());
  }

 private:
  const std::shared_ptr<MailRings> rings_;
};

class InProcess final : public SlotExchange {
 public:
  InProcess(std::shared_ptr<void> owner, const SlotMemory& memory, int rank,
            std::unique_ptr<LongSlots> long_slots, std::shared_ptr<HandOver> direct,
            std::shared_ptr<MailRings> rings)
      : SlotExchange(owner, memory, rank, std::move(long_slots)),
        owner_(std::move(owner)),
        direct_(std::move(direct)),
        rings_(std::move(rings)) {}
  ~InProcess() override { direct_->leave(rank()); }
  const char* name() const override { return "in-process"; }

  std::unique_ptr<MailMemory> mail() override {
    return std::make_unique<InProcessMail>(owner_, memory(), rank(), rings_);
  }

  bool direct() const override { return true; }
  std::unique_ptr<Pending> send_from(int peer, int lane, const std::byte* data,
                                     size_t bytes) override {
    check_direct(peer, lane);
    return direct_->send_from(rank(), peer, lane, data, bytes);
  }
  std::unique_ptr<Pending> receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                        size_t room) override {
    (void)bytes;
    check_direct(peer, lane);
    return direct_->receive_into(rank(), peer, lane, data, room);
  }

  void finish(Pending& transfer, int peer, const Deadline& deadline) override {
    const auto slice = [&] {
      return std::min<std::chrono::nanoseconds>(deadline.left(), kWaitSlice);
    };
    while (!HandOver::ended_within(transfer, slice())) {
      if (const auto known = failure()) throw_failure(*known);
      if (deadline.expired()) break;
    }
    try {
      transfer.wait(deadline);
    } catch (const std::exception& e) {
      Failure failure = failure_of(e);
      failure.text = str_of("rank ", called(rank()), " over ", name(), ", with rank ", called(peer),
                            ", ", deadline.elapsed_text(), ": ", failure.text);
      abort(failure);  // keeps the first cause of the group
      throw_failure(this->failure().value_or(failure));
    }
  }

 private:
  void check_direct(int peer, int lane) {
    if (const auto known = failure()) throw_failure(*known);
    check_peer(peer, rank(), size());
    if (lane >= 0 && lane < kDirectLanes) return;
    throw ConfigError(
        str_of("lane ", lane, " of direct transfers; allowed: 0 to ", kDirectLanes - 1));
  }

  const std::shared_ptr<void> owner_;
  const std::shared_ptr<HandOver> direct_;
  const std::shared_ptr<MailRings> rings_;
};

// Anonymous pages are zero and cost nothing before their first use.
std::shared_ptr<void> allocate(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw ResourceError(str_of("cannot allocate ", bytes,
                               " bytes for an in-process group: ", std::strerror(errno)));
  }
  return {memory, [bytes](void* address) { munmap(address, bytes); }};
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size, size_t slot_bytes,
                                                                 int slots) {
  const SlotLayout layout = SlotLayout::make(size, slot_bytes, slots);
  std::shared_ptr<void> owner = allocate(layout.total_bytes);
  SlotMemory memory(static_cast<std::byte*>(owner.get()), layout);
  memory.format();
  std::vector<std::unique_ptr<Communicator>> group;
  group.reserve(size);
  auto buffers =
      std::make_shared<SlotBuffers>(static_cast<size_t>(size) * 2 * static_cast<size_t>(slots));
  auto direct = std::make_shared<HandOver>(size);
  auto rings = std::make_shared<MailRings>(size);
  for (int rank = 0; rank < size; ++rank) {
    group.push_back(std::make_unique<InProcess>(
        owner, memory, rank, std::make_unique<InProcessLongSlots>(buffers, rank, slots), direct,
        rings));
  }
  return group;
}

}  // namespace cgx
