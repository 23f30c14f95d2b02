// The steps that reducers are made of: encode a chunk into a message, sum what several ranks sent,
// decode a message. Work goes in blocks that stay in the cache: every value is touched by decode,
// sum and encode while it is near.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/schedule/reducer.h"

namespace cgx {

/// Which encoding of a call a random number belongs to; keeps the roundings of one value
/// independent.
enum class Stage : int { kContribution = 0, kSum = 1, kInner = 2 };

/// Of the generator, for this rank's roundings in one stage of the call.
RandomKey key_of(const Call& call, uint64_t seed, Stage stage);

/// Where values of the call's tensor lie.
struct View {
  std::byte* base = nullptr;  // null: nowhere
  size_t first_value = 0;     // the value at base, unless packed
  DType dtype = DType::kFloat32;
  /// The values of a chunk lie one behind the other, in the order of its pieces.
  bool packed = false;

  /// Value number `value` of a piece.
  std::byte* at(const Piece& piece, size_t value) const {
    const size_t place = (packed ? piece.packed : piece.offset - first_value) + value;
    return base + place * size_of(dtype);
  }
};

/// A chunk and the message that carries it.
struct ChunkToSend {
  const Chunk* chunk;
  std::byte* payload;
};
struct ReceivedChunk {
  const Chunk* chunk;
  const std::byte* payload;
};

/// Encodes the values of chunks into their messages' payloads.
void encode_chunks(Call& call, const std::vector<ChunkToSend>& chunks, const View& input,
                   Stage stage);
void encode_chunk(Call& call, const Chunk& chunk, const View& input, Stage stage,
                  std::byte* payload);

/// Decodes messages' payloads to `output` (of the plan's dtype, or fp32).
void decode_chunks(Call& call, const std::vector<ReceivedChunk>& chunks, const View& output);
void decode_chunk(Call& call, const Chunk& chunk, const std::byte* payload, const View& output);

/// Bytes between the call's tensors, messages and work memory.
void copy_bytes(Call& call, void* to, const void* from, size_t bytes);

struct Sum {
  /// By summand, in order; nullptr: the values of `own`, unrounded.
  const std::vector<const std::byte*>& payloads;
  /// This rank's values. If this rank has a payload too (`own_index`), exact pieces are read here,
  /// which saves the copy of values that already lie where the sum will.
  View own;
  /// Gets the sum; what was encoded and decoded again if `encoded` is given. May be nowhere then.
  View output;
  std::byte* encoded = nullptr;
  float divisor = 1;
  /// True if the caller gets the sum. Sums of finite values may overflow: looked for under kRaise.
  bool final = true;
  /// Which payload is this rank's own; -1: none is.
  int own_index = -1;
};

/// Sums a chunk over several ranks.
void sum_chunk(Call& call, const Chunk& chunk, const Sum& sum);

/// Under NonFinite::kRaise: looks for a NaN or Inf in this rank's input before anything is sent.
void check_input(Call& call, const void* data, size_t values);

}  // namespace cgx
