#include "comm/shm/slot_failure.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/deadline.h"
#include "comm/futex.h"

namespace cgx {

bool publish_failure(const SlotMemory& memory, int rank, const Failure& failure) {
  const std::string text = pack_failure(failure);
  SlotHeader& header = memory.header();
  uint32_t none = SlotHeader::kNone;
  if (!header.failure_state.compare_exchange_strong(none, SlotHeader::kBeingWritten)) return false;
  header.failure_kind = static_cast<uint32_t>(failure.kind);
  header.failure_rank = rank;
  header.failure_length = static_cast<uint32_t>(std::min(text.size(), sizeof header.failure_text));
  std::memcpy(header.failure_text, text.data(), header.failure_length);
  header.failure_state.store(SlotHeader::kWritten, std::memory_order_seq_cst);
  for (int r = 0; r < memory.layout().size; ++r) {
    for (std::atomic<uint32_t>* bell : {&memory.rank(r).bell, &memory.mail(r).bell}) {
      bell->fetch_add(1, std::memory_order_seq_cst);
      futex_wake_all(*bell);
    }
  }
  return true;
}

Failure published_failure(const SlotMemory& memory, int rank,
                          const std::function<int(int)>& called) {
  SlotHeader& header = memory.header();
  // The writer may have died half-way; then only the fact is known.
  const Deadline patience = Deadline::after(std::chrono::milliseconds(100));
  while (header.failure_state.load(std::memory_order_acquire) != SlotHeader::kWritten) {
    if (patience.expired()) {
      return {FailureKind::kPeerLost,
              str_of("rank ", called(rank),
                     ": another rank ended while it reported a failure of the group")};
    }
    sched_yield();
  }
  const size_t length = std::min<size_t>(header.failure_length, sizeof header.failure_text);
  Failure failure = unpack_failure(std::string(header.failure_text, length));
  failure.kind = static_cast<FailureKind>(header.failure_kind);
  if (failure.rank < 0 && header.failure_rank != rank) failure.rank = called(header.failure_rank);
  return failure;
}

}  // namespace cgx
