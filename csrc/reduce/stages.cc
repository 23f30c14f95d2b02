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

// sum += n values of `dtype` at x; `mine` is room for n values.
void add_values(const std::byte* x, DType dtype, size_t n, float* sum, float* mine) {
  if (dtype == DType::kFloat32) {
    raw_codec()->decode(x, dtype, n, 0, n, sum, true);
    return;
  }
  to_float(x, dtype, n, mine);
  for (size_t i = 0; i < n; ++i) sum[i] += mine[i];
}

}  // namespace

void encode_chunk(Call& call, const Chunk& chunk, const View& input, Stage stage,
                  std::byte* payload) {
  StageTimer timer(call.stats.encode_ns, "cgx:encode");
  for (const Piece& piece : chunk.pieces) {
    piece.codec->encode(input.at(piece, 0), input.dtype, call.plan.dtype, piece.count, 0,
                        piece.count, key_of(call, *piece.codec, stage), piece.offset,
                        payload + piece.payload);
    if (call.nonfinite == NonFinite::kRaise &&
        !piece.codec->holds_finite(payload + piece.payload, call.plan.dtype, piece.count)) {
      call.met_nonfinite = true;
    }
  }
}

void decode_chunk(Call& call, const Chunk& chunk, const std::byte* payload, const View& output) {
  StageTimer timer(call.stats.decode_ns, "cgx:decode");
  const DType dtype = call.plan.dtype;
  for (const Piece& piece : chunk.pieces) {
    const std::byte* in = payload + piece.payload;
    if (output.dtype == DType::kFloat32) {
      piece.codec->decode(in, dtype, piece.count, 0, piece.count,
                          reinterpret_cast<float*>(output.at(piece, 0)), false);
      continue;
    }
    const size_t block = block_values(*piece.codec);
    float* y = scratch_of(call, std::min(block, piece.count));
    for (size_t first = 0; first < piece.count; first += block) {
      const size_t n = std::min(block, piece.count - first);
      piece.codec->decode(in, dtype, piece.count, first, n, y, false);
      from_float(y, output.dtype, n, output.at(piece, first));
    }
  }
}

void sum_chunk(Call& call, const Chunk& chunk, const Sum& wanted) {
  StageTimer timer(call.stats.decode_ns, "cgx:decode");
  const DType dtype = call.plan.dtype;
  const bool look = wanted.final && call.nonfinite == NonFinite::kRaise;
  const bool kept = wanted.output.base != nullptr;
  const bool as_float = kept && wanted.output.dtype == DType::kFloat32;
  // The own values may lie where the output does: then they must be read before it is written.
  const bool reads_own = std::find(wanted.payloads.begin() + 1, wanted.payloads.end(), nullptr) !=
                         wanted.payloads.end();
  const bool in_place = as_float && !reads_own;
  for (const Piece& piece : chunk.pieces) {
    const size_t block = block_values(*piece.codec);
    // Two blocks: the sum, and this rank's own values as fp32 where they are not.
    float* scratch = scratch_of(call, 2 * std::min(block, piece.count));
    float* mine = scratch + std::min(block, piece.count);
    const RandomKey key = key_of(call, *piece.codec, Stage::kSum);
    for (size_t first = 0; first < piece.count; first += block) {
      const size_t n = std::min(block, piece.count - first);
      std::byte* out = kept ? wanted.output.at(piece, first) : nullptr;
      float* sum = in_place ? reinterpret_cast<float*>(out) : scratch;
      bool started = false;
      for (const std::byte* payload : wanted.payloads) {
        if (payload != nullptr) {
          piece.codec->decode(payload + piece.payload, dtype, piece.count, first, n, sum, started);
        } else if (started) {
          add_values(wanted.own.at(piece, first), wanted.own.dtype, n, sum, mine);
        } else {
          to_float(wanted.own.at(piece, first), wanted.own.dtype, n, sum);
        }
        started = true;
      }
      if (wanted.divisor != 1) divide(sum, n, wanted.divisor);
      if (wanted.encoded != nullptr) {
        piece.codec->encode(sum, DType::kFloat32, dtype, piece.count, first, n, key, piece.offset,
                            wanted.encoded + piece.payload);
        if (!kept) continue;
        if (as_float) sum = reinterpret_cast<float*>(out);
        piece.codec->decode(wanted.encoded + piece.payload, dtype, piece.count, first, n, sum,
                            false);
      }
      if (reinterpret_cast<std::byte*>(sum) != out) {
        from_float(sum, wanted.output.dtype, n, out);
      }
      // Finite inputs may overflow in the sum, or when it is rounded to 16 bits.
      if (look && !all_finite(out, wanted.output.dtype, n)) call.met_nonfinite = true;
    }
  }
}

void check_input(Call& call, const void* data, size_t values) {
  if (call.nonfinite == NonFinite::kRaise && !all_finite(data, call.plan.dtype, values)) {
    call.met_nonfinite = true;
  }
}

}  // namespace cgx
