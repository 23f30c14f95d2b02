#include "reduce/stages.h"

#include <algorithm>
#include <cstring>

#include "codec/convert.h"
#include "codec/finite.h"
#include "codec/random.h"

namespace cgx {
namespace {

// Values per block: 64 KiB of fp32, so that one block and its encodings stay in the second-level
// cache.
constexpr size_t kBlockValues = 16 * 1024;

size_t block_values(const Codec& codec) {
  const size_t block = codec.block();
  return block >= kBlockValues ? block : kBlockValues / block * block;
}

RandomKey key_of(const Call& call, const Codec& codec, Stage stage) {
  return random_key(codec.spec().seed, call.identity.sequence, call.identity.rank,
                    static_cast<int>(stage));
}

float* scratch_of(Call& call, size_t values) {
  if (call.scratch.size() < values) call.scratch.resize(values);
  return call.scratch.data();
}

}  // namespace

void encode_chunk(Call& call, const Chunk& chunk, const View& input, Stage stage,
                  std::byte* payload) {
  ScopedTimer timer(call.stats.encode_ns);
  const DType dtype = call.plan.dtype;
  for (const Piece& piece : chunk.pieces) {
    piece.codec->encode(input.at(piece.offset, dtype), dtype, dtype, piece.count, 0, piece.count,
                        key_of(call, *piece.codec, stage), piece.offset, payload + piece.payload);
  }
}

void decode_chunk(Call& call, const Chunk& chunk, const std::byte* payload, const View& output) {
  ScopedTimer timer(call.stats.decode_ns);
  const DType dtype = call.plan.dtype;
  for (const Piece& piece : chunk.pieces) {
    const std::byte* in = payload + piece.payload;
    if (dtype == DType::kFloat32) {
      piece.codec->decode(in, dtype, piece.count, 0, piece.count,
                          reinterpret_cast<float*>(output.at(piece.offset, dtype)), false);
      continue;
    }
    const size_t block = block_values(*piece.codec);
    float* y = scratch_of(call, std::min(block, piece.count));
    for (size_t first = 0; first < piece.count; first += block) {
      const size_t n = std::min(block, piece.count - first);
      piece.codec->decode(in, dtype, piece.count, first, n, y, false);
      from_float(y, dtype, n, output.at(piece.offset + first, dtype));
    }
  }
}

void sum_chunk(Call& call, const Chunk& chunk, const std::vector<const std::byte*>& payloads,
               const View& own, const View& output, std::byte* encoded) {
  ScopedTimer timer(call.stats.decode_ns);
  const DType dtype = call.plan.dtype;
  for (const Piece& piece : chunk.pieces) {
    const size_t block = block_values(*piece.codec);
    // Two blocks: the sum, and this rank's own values as fp32 where they are not.
    float* sum = scratch_of(call, 2 * std::min(block, piece.count));
    float* mine = sum + std::min(block, piece.count);
    const RandomKey key = key_of(call, *piece.codec, Stage::kSum);
    for (size_t first = 0; first < piece.count; first += block) {
      const size_t n = std::min(block, piece.count - first);
      for (size_t p = 0; p < payloads.size(); ++p) {
        if (payloads[p] != nullptr) {
          piece.codec->decode(payloads[p] + piece.payload, dtype, piece.count, first, n, sum,
                              p > 0);
          continue;
        }
        const std::byte* x = own.at(piece.offset + first, dtype);
        if (p == 0) {
          to_float(x, dtype, n, sum);
        } else if (dtype == DType::kFloat32) {
          raw_codec()->decode(x, dtype, n, 0, n, sum, true);
        } else {
          to_float(x, dtype, n, mine);
          for (size_t i = 0; i < n; ++i) sum[i] += mine[i];
        }
      }
      if (call.identity.average) divide(sum, n, static_cast<float>(payloads.size()));
      if (encoded != nullptr) {
        piece.codec->encode(sum, DType::kFloat32, dtype, piece.count, first, n, key, piece.offset,
                            encoded + piece.payload);
        piece.codec->decode(encoded + piece.payload, dtype, piece.count, first, n, sum, false);
      }
      std::byte* out = output.at(piece.offset + first, dtype);
      from_float(sum, dtype, n, out);
      // What the caller gets: finite inputs may overflow in the sum, or when it is rounded to 16
      // bits.
      if (call.nonfinite == NonFinite::kRaise && !all_finite(out, dtype, n)) {
        call.met_nonfinite = true;
      }
    }
  }
}

}  // namespace cgx
