// The steps that reducers are made of: encode a chunk into a message, sum what all ranks sent,
// decode a message. Work goes in blocks that stay in the cache: every value is touched by decode,
// sum and encode while it is near.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/reducer.h"

namespace cgx {

/// Which encoding of a call a random number belongs to; keeps the two roundings of one value
/// independent.
enum class Stage : int { kContribution = 0, kSum = 1 };

/// Where the values of the call's tensor lie: value number v is at base + (v - first_value) *
/// size_of(dtype).
struct View {
  std::byte* base = nullptr;
  size_t first_value = 0;

  std::byte* at(size_t value, DType dtype) const {
    return base + (value - first_value) * size_of(dtype);
  }
};

/// Encodes the values of a chunk into a message's payload.
void encode_chunk(Call& call, const Chunk& chunk, const View& input, Stage stage,
                  std::byte* payload);

/// Decodes a message's payload to `output`.
void decode_chunk(Call& call, const Chunk& chunk, const std::byte* payload, const View& output);

/// Sums a chunk over all ranks, in rank order, to `output`.
///   payloads[p]  the payload of rank p; nullptr means: take the values of `own` (this rank's
///   contribution, unrounded) encoded      if not null: the sum is encoded there and `output` gets
///   the decoded bytes
/// Divides by the number of ranks where the call averages. Sets call.met_nonfinite under
/// NonFinite::kRaise.
void sum_chunk(Call& call, const Chunk& chunk, const std::vector<const std::byte*>& payloads,
               const View& own, const View& output, std::byte* encoded);

}  // namespace cgx
