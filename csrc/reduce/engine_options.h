// Options that must be equal on all ranks of a group: plans depend on them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/plan/plan.h"

namespace cgx {

enum class Reduction : uint8_t { kAuto = 0, kOneShot = 1, kScatterReduceAllGather = 2, kRing = 3 };

/// From this many bytes on direct transfers pay off: below, the headers before them cost more than
/// the copies into and out of messages (benchmarks/exact.py).
inline constexpr size_t kDirectFrom = size_t{512} << 10;
/// Bytes of a chunk of a direct all-reduce: each costs every rank a wait, and one that sleeps costs
/// some 50 us.
inline constexpr size_t kDirectChunk = size_t{2} << 20;

/// Effect of a NaN or Inf. kPropagate: the result is not finite on all ranks. kRaise: an error.
enum class NonFinite : uint8_t { kPropagate = 0, kRaise = 1 };

/// The options of one engine.
struct EngineOptions {
  /// On one host, and across hosts.
  Reduction intra_reduction = Reduction::kAuto;
  Reduction cross_reduction = Reduction::kAuto;
  NonFinite nonfinite = NonFinite::kPropagate;
  /// A checksum after every message.
  bool checksum = false;
  /// Errors show the hashes of plans. May differ between ranks.
  bool tell_hashes = false;
  /// With two levels: no codec inside hosts.
  bool intra_exact = true;
  /// With one level, over a communicator with direct transfers: kAuto uses them for exact tensors
  /// from this many bytes on. 0: never.
  size_t direct_from = 0;
  /// Bytes aimed at for a chunk of a direct all-reduce.
  size_t direct_chunk = kDirectChunk;
  /// Exchanges inside a host.
  Budget intra;
  /// Across hosts: bytes aimed at for a message segment, and bytes that one exchange may have.
  size_t segment_bytes = 0;
  size_t cross_bytes = 0;
};

}  // namespace cgx
