#include "comm/shm/slots.h"

#include "base/error.h"
#include "check.h"
#include "comm/in_process.h"
#include "machinery/slot_access.h"
#include "targets.h"

namespace cgx::native {
namespace {

constexpr size_t kCapacity = 5000, kLong = 20000;

// Numbers that matter to the checks, or any.
uint64_t take_number(Input& input) {
  constexpr uint64_t kNumbers[] = {0,     1,          2,          3,         8,        64,
                                   72,    4999,       5000,       5001,      8192 + 8, 16384,
                                   ~0ull, ~0ull - 55, 1ull << 63, 1ull << 32};
  const uint8_t which = input.take<uint8_t>();
  if (which >= 128) return input.take<uint64_t>();
  // In the memory beside a slot.
  const uint64_t beside = which < 64 ? 0 : kLongSlot + which / 16 % 4 * kLongSlotBytes + 8;
  return kNumbers[which % 16] + beside;
}

}  // namespace

void fuzz_slots(const uint8_t* data, size_t size) {
  using Access = SlotExchangeTestAccess;
  Input input(data, size);
  auto group = make_in_process_group(2, kCapacity);
  Communicator& comm = *group[0];
  auto& peer = dynamic_cast<SlotExchange&>(*group[1]);
  const Deadline now = Deadline::after(std::chrono::nanoseconds(0));
  unsigned sum = 0;
  try {
    for (int step = 0; step < 12 && input.left() > 0; ++step) {
      switch (input.below(7)) {
        case 0: {
          const uint64_t offset = take_number(input), bytes = take_number(input);
          Access::announce(peer, 0, offset, bytes, take_number(input));
          break;
        }
        case 1:
          Access::seen(peer, 0).released = take_number(input);
          break;
        case 2:
        case 3: {
          const Message message = comm.receive(1, now);
          CHECK(message.bytes >= 1 && message.bytes <= kLong + 64);
          for (size_t i = 0; i < message.bytes; ++i) sum += static_cast<unsigned>(message.data[i]);
          comm.release(1);
          break;
        }
        case 4: {
          const size_t bytes = input.below(kCapacity + 2);
          std::byte* memory = comm.open_broadcast(bytes, now);
          for (size_t i = 0; i < bytes; ++i) memory[i] = std::byte{1};
          comm.post(now);
          break;
        }
        case 5: {
          // The peer's memory beside its slots is there from now on.
          if (input.flip()) break;
          const size_t bytes = kCapacity + 1 + input.below(kLong - kCapacity);
          peer.make_room(bytes);
          std::byte* memory = peer.open_broadcast(bytes, now);
          for (size_t i = 0; i < bytes; ++i) memory[i] = std::byte{2};
          peer.post(now);
          break;
        }
        default: {
          SlotHeader& header = Access::header(peer);
          header.failure_kind = input.take<uint32_t>();
          header.failure_rank = input.take<int32_t>();
          header.failure_length = input.take<uint32_t>();
          if (input.flip()) header.failure_state = SlotHeader::kWritten;
        }
      }
    }
  } catch (const Error&) {
  } catch (const ConfigError&) {
  }
  // Keeps the reads.
  CHECK(sum != 0xffffffffu);
}

}  // namespace cgx::native
