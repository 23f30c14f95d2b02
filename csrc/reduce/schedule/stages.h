// The steps of reducers: encode a chunk into a message, sum the messages of several ranks, decode a
// message. HostStages (host_stages.h) work on memory of the host, DeviceStages (device_stages.h) on
// memory of a GPU, with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reduce/schedule/reducer.h"

namespace cgx {

/// The encoding of a call that a random number belongs to; makes the roundings of one value
/// independent.
enum class Stage : int { kContribution = 0, kSum = 1, kIntra = 2 };

/// Key of the random generator for this rank's roundings in one stage of the call.
RandomKey key_of(const Call& call, uint64_t seed, Stage stage);

/// A chunk and the message that carries it.
struct ChunkToSend {
  const Chunk* chunk;
  std::byte* payload;
};
struct ReceivedChunk {
  const Chunk* chunk;
  const std::byte* payload;
};

/// What a sum does with the call's residual, if there is one.
enum class Feedback : uint8_t {
  kNone,
  kSet,  // replaces it by the error: (what was summed - what the ranks get) * divisor
  kAdd,  // adds the error to it
};

struct Sum {
  /// By summand, in order; nullptr: the values of `own`, unrounded.
  const std::vector<const std::byte*>& payloads;
  /// This rank's values. If this rank has a payload too (`own_index`), exact runs are read here,
  /// which saves the copy of values that already lie where the sum will.
  View own;
  /// Receives the sum; with `encoded`, the values decoded from it. May be null with `encoded`.
  View output;
  std::byte* encoded = nullptr;
  float divisor = 1;
  /// True if the caller gets the sum. Sums of finite values may overflow: looked for under kRaise.
  bool final = true;
  /// Index of this rank's own payload; -1: none.
  int own_index = -1;
  Feedback feedback = Feedback::kNone;
};

/// Thread-safety: one call at a time uses the stages of an engine.
class Stages {
 public:
  virtual ~Stages() = default;

  /// Encodes the values of chunks into their messages' payloads. A residual gets the errors.
  /// `final`: they are the result of the call, rounded to the plan's dtype where they are decoded.
  virtual void encode(Call& call, std::span<const ChunkToSend> chunks, const View& input,
                      Stage stage, bool final = false) = 0;
  /// Decodes messages' payloads to `output` (of the plan's dtype, or fp32).
  virtual void decode(Call& call, std::span<const ReceivedChunk> chunks, const View& output) = 0;
  /// Sums a chunk over several ranks, or combines it as the plan says.
  virtual void sum(Call& call, const Chunk& chunk, const Sum& wanted) = 0;
  /// Bytes between the call's tensors, messages and work memory.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  /// Under NonFinite::kRaise: checks this rank's summands (and residual) for NaN and Inf before
  /// anything is sent.
  virtual void check_input(Call& call, const void* data, size_t values) = 0;

  /// True if tensors and messages are memory of a GPU, where a step for several chunks at once costs
  /// one launch.
  virtual bool on_device() const = 0;
  /// Work memory (work_memory.h), 64-byte aligned.
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;

  /// Of one chunk.
  void encode_chunk(Call& call, const Chunk& chunk, const View& input, Stage stage,
                    std::byte* payload, bool final = false) {
    const ChunkToSend one{&chunk, payload};
    encode(call, {&one, 1}, input, stage, final);
  }
  void decode_chunk(Call& call, const Chunk& chunk, const std::byte* payload, const View& output) {
    const ReceivedChunk one{&chunk, payload};
    decode(call, {&one, 1}, output);
  }

  /// check_input() of shards, which may lie apart.
  void check_shards(Call& call, const View& input) {
    if (input.parts == nullptr) return check_input(call, input.base, call.plan.values);
    for (int rank = 0; rank < call.plan.size; ++rank) {
      check_input(call, input.parts[rank], call.plan.values / static_cast<size_t>(call.plan.size));
    }
  }

  /// data += the call's residual, which keeps what is lost when the sum is rounded to the plan's
  /// dtype. For values that travel as they are, and for groups of one rank.
  void add_residual(Call& call, void* data, size_t values);
};

}  // namespace cgx
