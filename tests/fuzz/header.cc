#include "reduce/plan/header.h"

#include <memory>

#include "base/error.h"
#include "check.h"
#include "comm/failure.h"
#include "specs.h"

namespace cgx::native {

void fuzz_header(const uint8_t* data, size_t size) {
  Input input(data, size);
  const size_t payload = input.below(300);
  const auto plan =
      plan_all_reduce({{100, take_codec(input)}}, take_dtype(input), Algorithm::kOneShot,
                      {Topology::one_host(3), {60000, 60000}, {0, 0}, true});
  const CallIdentity call{plan.get(), input.below(3), input.flip(), 0};
  const size_t round = input.below(3);
  const bool from_scratch = input.flip();
  const size_t bytes = input.flip() ? sizeof(MessageHeader) + payload : input.below(400);
  auto message = std::make_unique<std::byte[]>(bytes);
  if (from_scratch || bytes < sizeof(MessageHeader)) {
    input.fill(message.get(), bytes);
  } else {
    CallIdentity sender = call;
    sender.rank = 1;
    write_header(message.get(), sender, round, payload, 0);
    for (size_t changes = input.below(4); changes > 0; --changes) {
      message[input.below(sizeof(MessageHeader))] ^= input.take<std::byte>();
    }
  }
  auto copy = [&](auto field) {
    std::memcpy(&field, message.get(), sizeof field);
    return field;
  };
  try {
    check_call({message.get(), bytes}, call, round, 1);
    check_header({message.get(), bytes}, call, round, 1, payload);
    // Accepted: then it says what it must.
    CHECK(bytes == sizeof(MessageHeader) + payload);
    const auto header = copy(MessageHeader{});
    CHECK(header.magic == MessageHeader::kMagic && header.version == MessageHeader::kVersion);
    CHECK(header.sequence == call.sequence && header.round == round && header.sender == 1);
    CHECK(header.plan_hash == plan->hash && header.payload_bytes == payload);
  } catch (const MismatchError& error) {
    CHECK(contains(error.what(), "rank 0"), error.what());
  }
  const Failure failure = unpack_failure(std::string(reinterpret_cast<const char*>(data), size));
  CHECK(unpack_failure(pack_failure(failure)).text == failure.text);
}

}  // namespace cgx::native
