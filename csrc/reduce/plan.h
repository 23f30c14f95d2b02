// The plan of one call: which values travel in which message, and where in it.
//
//   segments   the layers of the call, each with its codec (raw_codec() for exact ones)
//   rounds     parts of the tensor small enough for one exchange of the carrier
//   chunks     a round cut into one part per rank (or a single one, where everybody sends
//   everything) pieces     the runs of one chunk: a piece belongs to one segment
//
// Cuts inside a segment fall on multiples of its codec's granule, counted from the segment's start,
// so the code of a value depends neither on the number of ranks nor on the size of the rounds. A
// plan depends only on its arguments: equal on all ranks, and cached by content. Thread-safety: a
// built plan is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "codec/codec.h"

namespace cgx {

struct Segment {
  size_t count = 0;
  std::shared_ptr<const Codec> codec;
};

struct Piece {
  size_t offset = 0;  // first value, counted from the start of the call's tensor
  size_t count = 0;
  const Codec* codec = nullptr;
  size_t payload = 0;  // first byte in the message's payload, a multiple of kPieceAlignment
  size_t bytes = 0;
};

struct Chunk {
  std::vector<Piece> pieces;
  size_t values = 0;
  size_t payload_bytes = 0;

  bool empty() const { return values == 0; }
  /// Size of the message that carries it.
  size_t message_bytes() const;
};

struct Round {
  std::vector<Chunk> chunks;
};

enum class Operation : uint8_t { kAllReduce = 1, kReduceScatter = 2, kAllGather = 3 };
enum class Algorithm : uint8_t { kOneShot = 1, kScatterReduceAllGather = 2 };

const char* name_of(Operation operation);
const char* name_of(Algorithm algorithm);

/// Pieces start at multiples of this many bytes, so that raw segments are aligned in the message.
inline constexpr size_t kPieceAlignment = 16;

struct Plan {
  Operation operation = Operation::kAllReduce;
  Algorithm algorithm = Algorithm::kOneShot;
  DType dtype = DType::kFloat32;
  int size = 1;                   // ranks
  std::vector<Segment> segments;  // keeps the codecs alive
  size_t values = 0;              // of the tensor that is reduced or gathered into
  std::vector<Round> rounds;
  bool compressed = false;  // any segment that is not raw
  /// Equal on ranks that mean the same: covers all of the above, and no pointers.
  uint64_t hash = 0;

  const Segment* first_compressed() const;
};

/// All-reduce of the concatenated segments. `capacity` is the carrier's: bytes per exchange, over
/// all receivers. ConfigError if a single bucket does not fit into an exchange.
std::shared_ptr<const Plan> plan_all_reduce(std::vector<Segment> segments, DType dtype, int size,
                                            Algorithm algorithm, size_t capacity);

/// Reduce-scatter of `size` shards of `shard` values each, or all-gather into them. Every shard is
/// a segment of its own.
std::shared_ptr<const Plan> plan_shards(Operation operation, size_t shard,
                                        std::shared_ptr<const Codec> codec, DType dtype, int size,
                                        size_t capacity);

/// Payload bytes of a message that carries all segments: what one rank sends to each other one in a
/// one-shot reduction.
size_t one_shot_payload_bytes(const std::vector<Segment>& segments, DType dtype);

}  // namespace cgx
