#include "reduce/plan/header.h"

#include <cstring>
#include <string>

#include "base/error.h"
#include "reduce/plan/call_text.h"
#include "reduce/plan/hash.h"

namespace cgx {
namespace {

// The types' numbers are on the wire, and never change.
static_assert(static_cast<int>(DType::kBFloat16) == 2 && static_cast<int>(DType::kFloat64) == 3 &&
              static_cast<int>(DType::kUInt8) == 4 && static_cast<int>(DType::kInt64) == 10 &&
              static_cast<int>(DType::kBool) == 12 && static_cast<int>(DType::kComplex128) == 15 &&
              static_cast<int>(DType::kFloat4E2M1FNX2) == 21);

// Flags on which ranks must agree, and all that there are.
constexpr int kAgreed =
    MessageHeader::kAverage | MessageHeader::kStep | 0xff << MessageHeader::kCombineShift;
constexpr int kKnown = kAgreed | MessageHeader::kNonFinite;

MessageHeader make_header(const CallIdentity& call, size_t round, size_t payload_bytes,
                          uint8_t flags) {
  const Plan& plan = *call.plan;
  MessageHeader header;
  header.operation = static_cast<uint8_t>(plan.operation);
  header.algorithm = static_cast<uint8_t>(plan.algorithm);
  header.dtype = static_cast<uint8_t>(plan.dtype);
  header.sequence = call.sequence;
  header.round = static_cast<uint32_t>(round);
  header.sender = static_cast<uint16_t>(call.rank);
  header.flags = static_cast<uint8_t>(
      flags | (call.average ? MessageHeader::kAverage : 0) | (call.key ? MessageHeader::kStep : 0) |
      static_cast<int>(plan.combine) << MessageHeader::kCombineShift);
  if (const Layer* layer = plan.first_compressed()) {
    const CodecConfig& config = layer->codec->config();
    header.family = config.family().id;
    header.config = static_cast<uint32_t>(config.hash());
  }
  const size_t shown = plan.root >= 0 ? static_cast<size_t>(plan.root) : plan.layers.size();
  header.layers = static_cast<uint32_t>(call.key ? call.key->step : shown);
  header.plan_hash = call.key ? hash_with_step(plan.hash, *call.key) : plan.hash;
  header.values = call.values.value_or(plan.values);
  header.payload_bytes = payload_bytes;
  return header;
}

// The call of a rank, as far as its header shows it. Details that only the plan's hash covers are
// left out.
CallSide side_of(const MessageHeader& h, int rank, const CallIdentity& here) {
  const auto operation = static_cast<Operation>(h.operation);
  CallSide side;
  side.rank = rank;
  side.hash = h.plan_hash;
  side.call = name_of(operation);
  const auto dtype = static_cast<DType>(h.dtype);
  const auto combine = static_cast<Combine>(h.flags >> MessageHeader::kCombineShift);
  const bool steps = (h.flags & MessageHeader::kStep) != 0;
  const bool rooted = has_root(operation);
  if (reduces(operation)) {
    side.call += str_of(" ", h.flags & MessageHeader::kAverage ? "AVG" : name_of(combine));
  }
  if (operation != Operation::kBarrier) side.call += values_text(h.values, name_of(dtype));
  if (rooted && !steps) {
    side.call +=
        str_of(operation == Operation::kReduce || operation == Operation::kGather ? " to rank "
                                                                                  : " from rank ",
               h.layers);
  }
  const Layer* mine = here.plan->first_compressed();
  const CodecText codec = codec_text(h.family, h.config, mine ? &mine->codec->config() : nullptr);
  const bool may_compress = operation == Operation::kAllReduce ||
                            operation == Operation::kReduceScatter ||
                            operation == Operation::kAllGather;
  if (h.family != 0 || (may_compress && sums_in_float32(dtype, combine))) side.call += codec.call;
  std::string place;
  if (h.sequence != here.sequence) {
    const bool behind = h.sequence < here.sequence;
    const uint64_t calls = behind ? here.sequence - h.sequence : h.sequence - here.sequence;
    place = str_of(", ", calls, calls == 1 ? " call " : " calls ", behind ? "earlier" : "later");
  }
  const bool layers = !steps && !rooted;
  side.details = {codec.rest,
                  !layers ? "" : str_of(", in ", h.layers, h.layers == 1 ? " layer" : " layers"),
                  steps ? step_text(h.layers) : ", without a step",
                  str_of(", ", name_of(static_cast<Algorithm>(h.algorithm))),
                  str_of(", round ", h.round),
                  place};
  return side;
}

}  // namespace

void write_header(std::byte* message, const CallIdentity& call, size_t round, size_t payload_bytes,
                  uint8_t flags) {
  const MessageHeader header = make_header(call, round, payload_bytes, flags);
  std::memcpy(message, &header, sizeof header);
}

namespace {

// The header of a message, if it belongs to the call.
MessageHeader matching_header(const Message& message, const CallIdentity& call, size_t round,
                              int sender) {
  const MessageHeader expected = make_header(call, round, 0, 0);
  const std::string who = str_of("rank ", call.rank, ": message of rank ", sender);
  if (message.bytes < sizeof(MessageHeader)) {
    throw MismatchError(str_of(who, " has ", message.bytes, " bytes, less than the header's ",
                               sizeof(MessageHeader)));
  }
  MessageHeader header;
  std::memcpy(&header, message.header(), sizeof header);
  if (header.magic != MessageHeader::kMagic || header.version != MessageHeader::kVersion) {
    throw MismatchError(str_of(
        who, " is not of wire format version ", static_cast<int>(MessageHeader::kVersion),
        " (magic ", std::hex, header.magic, std::dec, ", version ",
        static_cast<int>(header.version), "): ranks must run the same version of torch_cgx"));
  }
  const bool same = header.operation == expected.operation && header.dtype == expected.dtype &&
                    header.algorithm == expected.algorithm && header.round == expected.round &&
                    header.sequence == expected.sequence && header.values == expected.values &&
                    header.plan_hash == expected.plan_hash &&
                    ((header.flags ^ expected.flags) & kAgreed) == 0;
  if (!same) {
    throw MismatchError(disagreement(side_of(expected, call.rank, call),
                                     side_of(header, sender, call), call.tell_hashes));
  }
  return header;
}

}  // namespace

void check_call(const Message& beginning, const CallIdentity& call, size_t round, int sender) {
  matching_header(beginning, call, round, sender);
}

uint8_t check_header(const Message& message, const CallIdentity& call, size_t round, int sender,
                     size_t payload_bytes) {
  const MessageHeader header = matching_header(message, call, round, sender);
  const std::string who = str_of("rank ", call.rank, ": message of rank ", sender);
  if (header.sender != sender || header.payload_bytes != payload_bytes ||
      message.bytes != sizeof(MessageHeader) + payload_bytes) {
    throw MismatchError(str_of(who, " was truncated or altered: expected sender ", sender, " and ",
                               payload_bytes, " payload bytes, the header says ", header.sender,
                               " and ", header.payload_bytes, ", the communicator delivered ",
                               message.bytes - sizeof(MessageHeader)));
  }
  if ((header.flags & ~kKnown) != 0) {
    throw MismatchError(str_of(who, " was altered: it has unknown flags, ", std::hex,
                               static_cast<int>(header.flags)));
  }
  return header.flags;
}

}  // namespace cgx
