// Every altered byte of a header is refused, except in fields that only appear in error messages.
#include <cstddef>
#include <cstring>

#include "check.h"
#include "maxmin_codec.h"
#include "reduce/plan/hash.h"
#include "reduce/plan/header.h"

namespace cgx::native {
namespace {

std::shared_ptr<const Plan> a_plan() {
  return plan_all_reduce({{1000, make_maxmin()}, {10, raw_codec()}}, DType::kFloat16,
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
    return at == offsetof(MessageHeader, family) ||
           (at >= offsetof(MessageHeader, config) && at < offsetof(MessageHeader, plan_hash));
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

// A step keys random numbers, so ranks have to agree on it, and on the tensor's number.
TEST(header_with_a_step) {
  Sent sent;
  CallIdentity call = sent.call, other = sent.call;
  call.key = StepKey{7, 3};
  other.rank = 2;
  const auto told = [&](std::optional<StepKey> theirs) {
    other.key = theirs;
    write_header(sent.message.data(), other, 5, kPayload, 0);
    return error_of<MismatchError>(
        [&] { check_call({sent.message.data(), sent.message.size()}, call, 5, 2); });
  };
  const std::string same = "all_reduce AVG of 1010 float16 values, 4 bits";
  const std::string mine = "ranks disagree on the collective:\n  rank 0 runs " + same + ", step 7";
  const std::string later = told(StepKey{8, 3}), without = told(std::nullopt);
  CHECK(later == mine + "\n  rank 2 runs " + same + ", step 8", later);
  CHECK(contains(without, mine) && contains(without, "\n  rank 2 runs " + same + ", in 2 layers"),
        without);
  CHECK(contains(without, ", without a step"), without);
  const std::string tensor = told(StepKey{7, 4});
  CHECK(contains(tensor, "layers, rounding or other settings"), tensor);

  other.key = call.key;
  write_header(sent.message.data(), other, 5, kPayload, 0);
  check_call({sent.message.data(), sent.message.size()}, call, 5, 2);
  MessageHeader header;
  std::memcpy(&header, sent.message.data(), sizeof header);
  CHECK(header.plan_hash == hash_with_step(sent.plan->hash, {7, 3}) && header.layers == 7);
  const StepKey one{7, 3}, next{8, 3}, other_tensor{7, 4};
  CHECK(one.number() != next.number() && one.number() != other_tensor.number());
}

// The op is in the flags; a reduce has its root in place of the number of layers.
TEST(header_of_a_reduce) {
  const auto plan_of = [](DType dtype, Combine op, int root) {
    return plan_reduce(100, dtype, op, root, Algorithm::kOneShot,
                       {Topology::one_host(3), {60000, 60000}, {0, 0}, true});
  };
  const auto mine = plan_of(DType::kInt32, Combine::kMax, 0);
  const CallIdentity own{mine.get(), 0, false, 0};
  std::vector<std::byte> message(sizeof(MessageHeader));
  const auto told = [&](DType dtype, Combine op, int root) {
    const auto plan = plan_of(dtype, op, root);
    write_header(message.data(), {plan.get(), 0, false, 1}, 0, 0, 0);
    return error_of<MismatchError>(
        [&] { check_call({message.data(), message.size()}, own, 0, 1); });
  };
  const std::string here =
      "ranks disagree on the collective:\n  rank 0 runs reduce MAX of 100 int32 values to rank 0"
      "\n  rank 1 runs reduce ";
  const auto root = told(DType::kInt32, Combine::kMax, 2);
  CHECK(root == here + "MAX of 100 int32 values to rank 2", root);
  const auto op = told(DType::kInt32, Combine::kBitXor, 0);
  CHECK(op == here + "BXOR of 100 int32 values to rank 0", op);
  const auto dtype = told(DType::kUInt32, Combine::kMax, 0);
  CHECK(dtype == here + "MAX of 100 uint32 values to rank 0", dtype);
  write_header(message.data(), own, 0, 0, 0);
  check_call({message.data(), message.size()}, own, 0, 1);
  MessageHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  CHECK(header.flags == 0x20 && header.dtype == 8 && header.operation == 4);
}

// What a peer's codec is follows from its family and the hash of its configuration.
TEST(header_names_what_codecs_differ_in) {
  const auto told = [](std::shared_ptr<const Codec> mine, std::shared_ptr<const Codec> theirs) {
    const auto plan = [](std::shared_ptr<const Codec> codec) {
      return plan_all_reduce({{1000, std::move(codec)}}, DType::kFloat32, Algorithm::kOneShot,
                             {Topology::one_host(2), {60000, 60000}, {0, 0}, true});
    };
    const auto here = plan(std::move(mine)), there = plan(std::move(theirs));
    const CallIdentity own{here.get(), 0, false, 0}, other{there.get(), 0, false, 1};
    std::vector<std::byte> message(sizeof(MessageHeader));
    write_header(message.data(), other, 0, 0, 0);
    return error_of<MismatchError>(
        [&] { check_call({message.data(), message.size()}, own, 0, 1); });
  };
  const auto wide = told(make_maxmin(), make_maxmin({.bucket_size = 1000}));
  CHECK(contains(wide,
                 "rank 0 runs all_reduce SUM of 1000 float32 values, 4 bits, maxmin bits=4 "
                 "bucket_size=512 rounding=nearest"),
        wide);
  CHECK(contains(wide,
                 "rank 1 runs all_reduce SUM of 1000 float32 values, 4 bits, maxmin bits=4 "
                 "bucket_size=1000 rounding=nearest"),
        wide);
  const auto large =
      told(make_maxmin({.bucket_size = 1 << 20}), make_maxmin({.bucket_size = (1 << 20) + 1}));
  CHECK(contains(large, "bucket_size=1048577"), large);
  const auto half = told(make_codec("bf16"), make_codec("fp16"));
  CHECK(contains(half, "16 bits, bf16") && contains(half, "16 bits, fp16"), half);
  const auto exact = told(raw_codec(), make_maxmin({.bits = 2}));
  CHECK(contains(exact, "values, exact") && contains(exact, "2 bits, maxmin bits=2"), exact);
  // Two parameters differ: too far for the search, so the text names the hash.
  const auto far = told(make_maxmin(), make_maxmin({.bits = 2, .bucket_size = 64}));
  CHECK(contains(far, "compressed by maxmin, configuration "), far);
}

}  // namespace cgx::native
