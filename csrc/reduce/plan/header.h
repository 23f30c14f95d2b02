// The header before every payload (docs/wire_format.md).
//
// A receiver compares it with the header that it expects: ranks that disagree on the operation, the
// sequence of calls, sizes, types or codecs get a MismatchError that names both sides. No byte of
// the payload is read before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/messages.h"
#include "reduce/plan/plan.h"
#include "reduce/plan/step_key.h"

namespace cgx {

struct MessageHeader {
  static constexpr uint32_t kMagic = 0x31584743;  // "CGX1" in memory
  static constexpr uint8_t kVersion = 3;
  enum Flags : uint8_t { kNonFinite = 1, kAverage = 2, kStep = 4 };
  /// The upper half of the flags: the plan's Combine.
  static constexpr int kCombineShift = 4;

  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  uint8_t operation = 0;
  uint8_t algorithm = 0;
  uint8_t dtype = 0;
  uint64_t sequence = 0;  // number of the call on this group
  uint32_t round = 0;
  uint16_t sender = 0;
  uint8_t flags = 0;
  uint8_t family = 0;   // of the first compressed layer's codec; 0: no layer is compressed
  uint32_t config = 0;  // of that codec: the low half of its configuration's hash
  /// Of an operation with a root: the root; with kStep: the low half of the step. For error
  /// messages.
  uint32_t layers = 0;
  uint64_t plan_hash = 0;  // with kStep: mixed with the step
  uint64_t values = 0;
  uint64_t payload_bytes = 0;
};
static_assert(sizeof(MessageHeader) == Messages::kPayloadOffset);

/// Size of the checksum after the payload, in groups with checksums.
inline constexpr size_t kChecksumBytes = 8;

/// Properties of one call to which every message is compared. Immutable during the call.
struct CallIdentity {
  const Plan* plan = nullptr;
  uint64_t sequence = 0;
  bool average = false;
  int rank = 0;
  bool checksum = false;     // after every payload
  bool tell_hashes = false;  // in errors
  /// Keys random numbers; none: `sequence` does.
  std::optional<StepKey> key{};
  /// Of the sender and the receiver of a message, in moves; none: the plan's.
  std::optional<uint64_t> values{};
};

/// Writes the header of a message with `payload_bytes` bytes after it. `flags` are
/// MessageHeader::Flags.
void write_header(std::byte* message, const CallIdentity& call, size_t round, size_t payload_bytes,
                  uint8_t flags);

/// Checks the beginning of a message, before all of it has arrived: MismatchError if the sender is
/// in another call.
void check_call(const Message& beginning, const CallIdentity& call, size_t round, int sender);

/// Checks a received message against the call; returns its MessageHeader::Flags. MismatchError that
/// names both sides otherwise.
uint8_t check_header(const Message& message, const CallIdentity& call, size_t round, int sender,
                     size_t payload_bytes);

}  // namespace cgx
