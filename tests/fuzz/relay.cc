#include "comm/relay/relay.h"

#include "base/error.h"
#include "check.h"
#include "comm/relay/lengths.h"
#include "machinery/mock_network.h"
#include "targets.h"

namespace cgx::native {
namespace {

constexpr size_t kCapacity = 50000;

}  // namespace

void fuzz_relay(const uint8_t* data, size_t size) {
  Input input(data, size);
  MockNetwork network(2);
  network.set_lazy(input.flip());
  const bool classes = input.flip();
  if (!classes) network.set_tags(8);
  auto tag_of = [&](size_t bytes, int without) {
    return classes ? relay::length_class(bytes).tag : without;
  };
  auto comm = make_relay_communicator(network.endpoint(0), kCapacity);
  auto peer = network.endpoint(1);
  const Deadline now = Deadline::after(std::chrono::nanoseconds(0));
  // Memory of the peer's messages, and the length that it announced last.
  std::vector<std::vector<std::byte>> sent;
  uint64_t announced = 0;
  std::vector<std::unique_ptr<Pending>> pending;
  auto send = [&](int tag, size_t bytes) -> std::byte* {
    sent.emplace_back(bytes);
    std::byte* memory = sent.back().data();
    if (tag == 0 && bytes >= 8) {
      std::memcpy(memory, &announced, 8);
    }
    pending.push_back(peer->send(0, tag, memory, bytes));
    return memory;
  };
  unsigned sum = 0;
  try {
    for (int step = 0; step < 16 && input.left() > 0; ++step) {
      switch (input.below(8)) {
        case 0:
        case 1:
          // A first frame never is longer than what receivers post; its length may be a lie.
          announced = input.flip() ? input.below(kCapacity + 2) : input.take<uint64_t>();
          send(0, input.flip() ? std::min<uint64_t>(announced, kRelayEagerBytes - 8) + 8
                               : input.below(kRelayEagerBytes));
          break;
        case 2:
          // A rest may be shorter than announced.
          if (announced + 8 > kRelayEagerBytes && announced <= kCapacity) {
            const size_t rest = announced + 8 - kRelayEagerBytes;
            send(tag_of(rest, relay::kRestTag), input.flip() ? rest : input.below(rest));
          }
          break;
        case 3: {
          const size_t bytes = 1 + input.below(100);
          send(tag_of(bytes, relay::kAgreedTag), bytes);
          break;
        }
        case 4:
          comm->begin_call();
          break;
        case 5:
          comm->expect(1, input.below(kCapacity + 2));
          break;
        default: {
          const bool look = input.flip();
          const Message message = look ? comm->peek(1, now) : comm->receive(1, now);
          CHECK(message.bytes >= 1 && message.bytes <= kCapacity, message.bytes);
          for (size_t i = 0; i < message.bytes; ++i) sum += static_cast<unsigned>(message.data[i]);
          if (!look) comm->release(1);
        }
      }
    }
  } catch (const Error&) {
  } catch (const ConfigError&) {
  }
  CHECK(sum != 0xffffffffu);
}

}  // namespace cgx::native
