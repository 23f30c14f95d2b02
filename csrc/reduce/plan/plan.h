// The plan of one call: which values travel in which message, and where in it.
//
//   layers   of the call, each with its codec (raw_codec() for exact ones)
//   rounds   ranges of the tensor small enough for one exchange of each communicator; a reducer has
//            several of them under way
//   shards   the shares of a round, one per team of ranks that talk across hosts; one in a group of
//            one level
//   chunks   the shares of a shard, one per rank of the team (or a single one, where every rank
//            sends everything)
//   runs     the values of one layer in one chunk, and so in one message
//
// Cuts inside a layer fall on multiples of its codec's granule, counted from the layer's start,
// so the code of a value depends neither on the number of ranks nor on the size of the rounds. A
// plan depends only on its arguments: equal on all ranks, and cached by content. Thread-safety: a
// built plan is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/dtype_set.h"
#include "codec/codec.h"
#include "reduce/plan/topology.h"

namespace cgx {

/// The part of a call's tensor that has a configuration of its own.
struct Layer {
  size_t count = 0;
  std::shared_ptr<const Codec> codec;
  /// Number of its first value for the random generator, where that must not depend on what else is
  /// in the call. None: its place in the call's tensor.
  std::optional<uint64_t> first{};

  bool operator==(const Layer&) const = default;
};

/// ConfigError unless the layers have `values` values in all.
void check_total(const std::vector<Layer>& layers, size_t values);

/// The values of one layer in one message.
struct Run {
  size_t offset = 0;  // first value, counted from the start of the call's tensor
  size_t count = 0;
  const Codec* codec = nullptr;
  size_t payload = 0;  // first byte in the message's payload, a multiple of kRunAlignment
  size_t bytes = 0;
  size_t packed = 0;   // values of the chunk's earlier runs
  uint64_t index = 0;  // of the first value, for the random generator
};

/// The share of one rank.
struct Chunk {
  std::vector<Run> runs;
  size_t values = 0;
  size_t payload_bytes = 0;

  bool empty() const { return values == 0; }
  /// Size of the message that carries it.
  size_t message_bytes() const;
};

struct Shard {
  std::vector<Chunk> chunks;  // what the ranks of a team send each other
  /// With two levels: all values of the shard, in the order of the chunks, as the ranks of one host
  /// send them to the team's member of that host.
  Chunk intra;
};

struct Round {
  std::vector<Shard> shards;  // by team
};

/// With two levels, a team's member sends the other ranks of its host the encoded result of a shard
/// as a bundle: the payloads of its chunks (for a single chunk: the payload of every host), each at
/// the next multiple of 64 bytes. bundle_stride: bytes of one payload, rounded up.
size_t bundle_stride(const Chunk& chunk);
size_t bundle_bytes(const Shard& shard, int hosts);

/// The numbers are on the wire.
enum class Operation : uint8_t {
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kReduce = 4,
  kBroadcast = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
  kBarrier = 9
};
constexpr bool reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter ||
         operation == Operation::kReduce;
}
constexpr bool has_root(Operation operation) {
  return operation == Operation::kReduce || operation == Operation::kBroadcast ||
         operation == Operation::kGather || operation == Operation::kScatter;
}
/// kDirect: scatter-reduce-all-gather of exact values, between the tensors themselves. kPairwise,
/// kTree: of moves, see schedule in moves/.
enum class Algorithm : uint8_t {
  kOneShot = 1,
  kScatterReduceAllGather = 2,
  kRing = 3,
  kDirect = 4,
  kPairwise = 5,
  kTree = 6
};

/// What a reduction does with the values of the ranks. The numbers are on the wire.
enum class Combine : uint8_t {
  kSum = 0,
  kMin = 1,
  kMax = 2,
  kProduct = 3,
  kBitAnd = 4,
  kBitOr = 5,
  kBitXor = 6
};

/// Its name in torch.distributed.
const char* name_of(Operation operation);
const char* name_of(Algorithm algorithm);
const char* name_of(Combine combine);

/// The types that can be reduced: without those of 8 bits and less that are only moved.
inline constexpr DTypeSet kReduced{
    DType::kFloat32, DType::kFloat16,   DType::kBFloat16,  DType::kFloat64,
    DType::kUInt8,   DType::kInt8,      DType::kInt16,     DType::kUInt16,
    DType::kInt32,   DType::kUInt32,    DType::kInt64,     DType::kUInt64,
    DType::kBool,    DType::kComplex32, DType::kComplex64, DType::kComplex128};

/// True for values that are summed in float32, as codecs see them: others have no codec but the raw
/// one, and are combined in their own type (schedule/combine.h).
constexpr bool sums_in_float32(DType dtype, Combine combine) {
  return combine == Combine::kSum && kComputed.has(dtype);
}

/// Runs start at multiples of this many bytes, so that raw layers are aligned in the message.
inline constexpr size_t kRunAlignment = 16;

/// Larger than any exchange.
inline constexpr size_t kNoLimit = size_t{1} << 46;

/// Bytes of one exchange, headers included: `wanted` is aimed at (the size of the segments that are
/// pipelined), `most` is what the communicator has memory for. A single bucket may use `limit`:
/// communicators make room for it.
struct Budget {
  size_t wanted = 0;
  size_t most = 0;
  size_t limit = kNoLimit;

  bool grows() const { return limit > most; }
};

/// Parameters of a plan beyond the call itself.
struct PlanSpace {
  Topology topology;
  Budget cross;             // messages of a team; of all ranks in a group of one level
  Budget intra;             // messages inside a host, with two levels
  bool intra_exact = true;  // with two levels: no codec inside hosts
  /// The first and the last rounds are smaller: the link starts earlier, and less work is left
  /// after the last message.
  bool ramp = false;
};

struct Plan {
  Operation operation = Operation::kAllReduce;
  Algorithm algorithm = Algorithm::kOneShot;
  DType dtype = DType::kFloat32;
  Combine combine = Combine::kSum;
  int size = 1;               // ranks
  std::vector<Layer> layers;  // keeps the codecs alive
  size_t values = 0;          // of the tensor that is reduced or gathered into
  std::vector<Round> rounds;
  /// Bytes of the longest exchange, headers included: of a team (of all ranks, with one level), and
  /// inside a host. The maximum over all ranks.
  size_t cross_bytes = 0, intra_bytes = 0;
  bool compressed = false;  // any layer that is not raw
  bool two_levels = false;
  /// The rank that all values come from or go to; -1: the operation has none.
  int root = -1;
  /// Equal on ranks with equal plans: covers all of the above, without pointers.
  uint64_t hash = 0;
  /// Different for all plans of a process.
  uint64_t serial = 0;

  const Layer* first_compressed() const;
  bool sums_in_float32() const { return cgx::sums_in_float32(dtype, combine); }
  /// The type of sums over a part of the ranks.
  DType partial_dtype() const { return sums_in_float32() ? DType::kFloat32 : dtype; }
};

/// All-reduce of the concatenated layers. ConfigError if a single bucket does not fit into the
/// limit of an exchange. kDirect: of one level, all layers exact; rounds are cut as if they were
/// one layer, and a chunk is one run of the tensor. All plans: ConfigError for a type that cannot
/// be reduced, an op that it has not, and a codec where values are not summed in float32.
std::shared_ptr<const Plan> plan_all_reduce(std::vector<Layer> layers, DType dtype,
                                            Algorithm algorithm, const PlanSpace& space,
                                            Combine combine = Combine::kSum);

/// Reduce of `values` exact values to the rank `root`. kOneShot: it gets the values of all ranks
/// (of all hosts, with two levels). kScatterReduceAllGather: every rank combines a chunk, and sends
/// the result to the root.
std::shared_ptr<const Plan> plan_reduce(size_t values, DType dtype, Combine combine, int root,
                                        Algorithm algorithm, const PlanSpace& space);

/// Reduce-scatter of one shard of `shard` values per rank, or all-gather into them. Every rank's
/// shard is a layer of its own. With two levels, shards[k].chunks[h] holds the values of the
/// ranks that team k serves on host h.
std::shared_ptr<const Plan> plan_shards(Operation operation, size_t shard,
                                        std::shared_ptr<const Codec> codec, DType dtype,
                                        const PlanSpace& space, Combine combine = Combine::kSum);

/// A move of `values` values (moves/move.h): names the call, and has no rounds. `layers`: one, if it
/// is compressed.
std::shared_ptr<const Plan> plan_move(Operation operation, DType dtype, size_t values, int root,
                                      std::vector<Layer> layers, const Topology& topology);

/// Payload bytes of a message that carries all layers: what one rank sends to each other one in a
/// one-shot reduction.
size_t one_shot_payload_bytes(const std::vector<Layer>& layers, DType dtype);

}  // namespace cgx
