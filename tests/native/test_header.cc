// Every altered byte of a header is refused, but for those that only appear in error messages.
#include <cstddef>
#include <cstring>

#include "check.h"
#include "reduce/plan/header.h"

namespace cgx::native {
namespace {

std::shared_ptr<const Plan> a_plan() {
  return plan_all_reduce({{1000, make_codec({})}, {10, raw_codec()}}, DType::kFloat16,
                         Algorithm::kScatterReduceAllGather,
                         {Topology::one_host(3), {60000, 60000}, {0, 0}, true});
}

constexpr size_t kPayload = 100;

struct Sent {
  std::shared_ptr<const Plan> plan = a_plan();
  CallIdentity call{plan.get(), 41, true, 0};
  std::vector<std::byte> message = std::vector<std::byte>(sizeof(MessageHeader) + kPayload);

  Sent() {
    CallIdentity sender = call;
    sender.rank = 2;
    write_header(message.data(), sender, 5, kPayload, MessageHeader::kNonFinite);
  }
  uint8_t check(size_t bytes) const {
    // In memory of exactly this size.
    const std::vector<std::byte> exact(message.begin(),
                                       message.begin() + static_cast<ptrdiff_t>(bytes));
    return check_header({exact.data(), bytes}, call, 5, 2, kPayload);
  }
};

}  // namespace

TEST(header_is_accepted_as_it_was_written) {
  const Sent sent;
  CHECK(sent.check(sent.message.size()) & MessageHeader::kNonFinite);
  check_call({sent.message.data(), sizeof(MessageHeader)}, sent.call, 5, 2);
}

TEST(header_truncated) {
  const Sent sent;
  for (size_t bytes = 0; bytes < sent.message.size(); ++bytes) {
    error_of<MismatchError>([&] { sent.check(bytes); });
  }
}

TEST(header_altered) {
  // Fields that are there for error messages: the hash decides.
  auto told_only = [](size_t at) {
    return at == offsetof(MessageHeader, bits) ||
           (at >= offsetof(MessageHeader, bucket_size) && at < offsetof(MessageHeader, plan_hash));
  };
  for (size_t at = 0; at < sizeof(MessageHeader); ++at) {
    for (int change = 1; change < 256; ++change) {
      Sent sent;
      sent.message[at] ^= static_cast<std::byte>(change);
      const bool flags = at == offsetof(MessageHeader, flags);
      if (told_only(at) || (flags && change == MessageHeader::kNonFinite)) {
        sent.check(sent.message.size());
      } else {
        error_of<MismatchError>([&] { sent.check(sent.message.size()); });
      }
    }
  }
}

TEST(header_names_both_sides) {
  Sent sent;
  CallIdentity other = sent.call;
  other.sequence = 40;
  const std::string text = error_of<MismatchError>(
      [&] { check_call({sent.message.data(), sent.message.size()}, other, 5, 2); });
  const std::string same = "all_reduce AVG of 1010 float16 values, 4 bits";
  CHECK(text == "ranks disagree on the collective:\n  rank 0 runs " + same + "\n  rank 2 runs " +
                    same + ", 1 call later",
        text);
}

}  // namespace cgx::native
