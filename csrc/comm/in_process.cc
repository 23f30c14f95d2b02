#include "comm/in_process.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "comm/slots.h"

namespace cgx {
namespace {

class InProcess final : public SlotExchange {
 public:
  InProcess(std::shared_ptr<void> owner, const SlotMemory& memory, int rank)
      : SlotExchange(std::move(owner), memory, rank) {}
  const char* name() const override { return "in-process"; }
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
  for (int rank = 0; rank < size; ++rank)
    group.push_back(std::make_unique<InProcess>(owner, memory, rank));
  return group;
}

}  // namespace cgx
