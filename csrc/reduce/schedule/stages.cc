#include "reduce/schedule/stages.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/float_mode.h"
#include "codec/ops/convert.h"
#include "codec/ops/finite.h"
#include "codec/ops/random.h"
#include "reduce/schedule/device_stages.h"
#include "reduce/schedule/residual.h"

namespace cgx {
namespace {

// Values per block: 64 KiB of fp32, so that one block and its encodings stay in the second-level
// cache.
constexpr size_t kBlockValues = 16 * 1024;

size_t block_values(const Codec& codec) {
  const size_t block = codec.block();
  return block >= kBlockValues ? block : kBlockValues / block * block;
}

// Values that a thread gets, at least: below, waking it costs more than it does.
constexpr size_t kValuesPerThread = 64 * 1024;

// The place in a piece at which a part of a chunk ends: a border of the codec's blocks.
size_t cut(const Piece& piece, size_t value) {
  if (value <= piece.packed) return 0;
  const size_t inside = value - piece.packed;
  if (inside >= piece.count) return piece.count;
  const size_t block = piece.codec->block();
  return inside / block * block;
}

/// Calls work(piece, first, n, part) for runs of values that cover the chunk, on the threads that
/// there are: `part` numbers the thread's share, below the result of parts_of().
template <typename Work>
void spread(const Call& call, const Chunk& chunk, size_t parts, const Work& work) {
  if (parts <= 1) {
    for (const Piece& piece : chunk.pieces) work(piece, size_t{0}, piece.count, size_t{0});
    return;
  }
  call.parallel->run(parts, [&](size_t part) {
    FloatMode ieee;  // of this thread: a pool inherits the mode of the thread that started it
    const size_t share = chunk.values / parts;
    const size_t from = share * part;
    const size_t to = part + 1 == parts ? chunk.values : from + share;
    for (const Piece& piece : chunk.pieces) {
      const size_t first = cut(piece, from), last = cut(piece, to);
      if (first < last) work(piece, first, last - first, part);
    }
  });
}

size_t parts_of(const Call& call, const Chunk& chunk) {
  if (call.parallel == nullptr || chunk.values < 2 * kValuesPerThread) return 1;
  return std::min(static_cast<size_t>(call.parallel->threads()), chunk.values / kValuesPerThread);
}

// Room for `blocks` blocks of fp32 values of the largest piece, for each part.
class Scratch {
 public:
  Scratch(Call& call, const Chunk& chunk, size_t parts, size_t blocks) {
    for (const Piece& piece : chunk.pieces) {
      values_ = std::max(values_, blocks * std::min(block_values(*piece.codec), piece.count));
    }
    // A line apart, so that no two threads write to the same one.
    values_ = (values_ + 15) / 16 * 16;
    if (call.scratch.size() < parts * values_) call.scratch.resize(parts * values_);
    data_ = call.scratch.data();
  }
  float* of(size_t part) const { return data_ + part * values_; }

 private:
  float* data_ = nullptr;
  size_t values_ = 0;
};

// x = dtype(x), in place; `room` is for n values.
void round_to(DType dtype, size_t n, float* x, float* room) {
  if (dtype == DType::kFloat32) return;
  from_float(x, dtype, n, room);
  to_float(room, dtype, n, x);
}

const float* as_float32(const std::byte* x) { return reinterpret_cast<const float*>(x); }

bool is_exact_float32(const Piece& piece, DType dtype) {
  return dtype == DType::kFloat32 && piece.codec == raw_codec().get();
}

// Sums one chunk; run() may be called on several threads at once.
class Summing {
 public:
  Summing(Call& call, const Sum& wanted)
      : call_(call),
        wanted_(wanted),
        dtype_(call.plan.dtype),
        kept_(wanted.output.base != nullptr),
        as_float_(kept_ && wanted.output.dtype == DType::kFloat32),
        feeds_back_(call.residual.base != nullptr && wanted.feedback != Feedback::kNone),
        adds_residual_(call.residual.base != nullptr && wanted.own.plus_residual) {
    // The own values may lie where the output does: then they must be read before it is written.
    const bool reads_own = std::find(wanted.payloads.begin() + 1, wanted.payloads.end(), nullptr) !=
                           wanted.payloads.end();
    in_place_ = as_float_ && !reads_own && !feeds_back_;
  }

  bool met_nonfinite() const { return met_nonfinite_; }

  // The values [first, first + n) of a piece; room for two blocks at `scratch`.
  void run(const Piece& piece, size_t first, size_t n, float* scratch) {
    const size_t block = block_values(*piece.codec);
    for (size_t done = 0; done < n; done += block) {
      one_block(piece, first + done, std::min(block, n - done), scratch);
    }
  }

 private:
  void one_block(const Piece& piece, size_t first, size_t n, float* scratch) {
    std::byte* out = kept_ ? wanted_.output.at(piece, first) : nullptr;
    float* sum = in_place_ ? reinterpret_cast<float*>(out) : scratch;
    float* mine = scratch + std::min(block_values(*piece.codec), piece.count);
    add_up(piece, first, n, sum, mine);
    if (wanted_.divisor != 1) divide(sum, n, wanted_.divisor);
    float* got = sum;  // what the ranks get
    if (wanted_.encoded != nullptr) {
      std::byte* encoded = wanted_.encoded + piece.payload;
      piece.codec->encode(sum, DType::kFloat32, dtype_, piece.count, first, n,
                          key_of(call_, piece.codec->seed(), Stage::kSum), piece.index, encoded);
      if (!kept_ && !feeds_back_) return;
      if (as_float_) {
        got = reinterpret_cast<float*>(out);
      } else if (feeds_back_) {
        got = mine;
      }
      piece.codec->decode(encoded, dtype_, piece.count, first, n, got, false);
    }
    if (kept_ && reinterpret_cast<std::byte*>(got) != out) {
      from_float(got, wanted_.output.dtype, n, out);
    }
    if (feeds_back_) {
      if (kept_ && !as_float_) to_float(out, wanted_.output.dtype, n, got = mine);
      keep_error(call_, piece, first, n, sum, got, wanted_.divisor,
                 wanted_.feedback == Feedback::kAdd);
    }
    // Finite inputs may overflow in the sum, or when it is rounded to 16 bits.
    if (wanted_.final && call_.nonfinite == NonFinite::kRaise &&
        !all_finite(out, wanted_.output.dtype, n)) {
      met_nonfinite_ = true;
    }
  }

  // In the order of the payloads.
  void add_up(const Piece& piece, size_t first, size_t n, float* sum, float* mine) {
    size_t next = 0;
    if (is_exact_float32(piece, dtype_) && wanted_.payloads.size() >= 2 && !adds_residual_) {
      add_pair(exact(piece, first, 0), exact(piece, first, 1), n, sum);
      next = 2;
    }
    for (; next < wanted_.payloads.size(); ++next) {
      const std::byte* payload = wanted_.payloads[next];
      if (payload != nullptr) {
        piece.codec->decode(payload + piece.payload, dtype_, piece.count, first, n, sum, next > 0);
      } else if (adds_residual_) {
        load_values(call_, wanted_.own, piece, first, n, next > 0 ? mine : sum);
        if (next > 0) add_pair(sum, mine, n, sum);
      } else if (next > 0) {
        add_to_float(wanted_.own.at(piece, first), wanted_.own.dtype, n, sum);
      } else {
        to_float(wanted_.own.at(piece, first), wanted_.own.dtype, n, sum);
      }
    }
  }

  // The fp32 values of a summand of an exact piece.
  const float* exact(const Piece& piece, size_t first, size_t index) const {
    const std::byte* payload = wanted_.payloads[index];
    const bool own = static_cast<int>(index) == wanted_.own_index || payload == nullptr;
    if (own && wanted_.own.base != nullptr) return as_float32(wanted_.own.at(piece, first));
    return as_float32(payload + piece.payload) + first;
  }

  Call& call_;
  const Sum& wanted_;
  const DType dtype_;
  const bool kept_;           // the sum goes somewhere
  const bool as_float_;       // as fp32
  const bool feeds_back_;     // its error goes to the residual
  const bool adds_residual_;  // own values come with the residual
  bool in_place_ = false;
  std::atomic<bool> met_nonfinite_{false};
};

// Of all payloads of a chunk, before threads encode their parts.
void begin_payloads(const Call& call, const Chunk& chunk, Stage stage, std::byte* payload) {
  for (const Piece& piece : chunk.pieces) {
    piece.codec->begin(key_of(call, piece.codec->seed(), stage), piece.index, piece.count,
                       payload + piece.payload);
  }
}

// encode_chunk(), block by block: a value, its encoding and its residual are touched while they are
// in the cache.
void encode_with_residual(Call& call, const Chunk& chunk, const View& input, Stage stage,
                          std::byte* payload, bool final) {
  const DType dtype = call.plan.dtype;
  const size_t parts = parts_of(call, chunk);
  const Scratch scratch(call, chunk, parts, 3);
  spread(call, chunk, parts, [&](const Piece& piece, size_t first, size_t n, size_t part) {
    const RandomKey key = key_of(call, piece.codec->seed(), stage);
    const size_t block = std::min(block_values(*piece.codec), piece.count);
    float* wanted = scratch.of(part);
    float* sent = wanted + block;
    for (size_t done = 0; done < n; done += block) {
      const size_t from = first + done, now = std::min(block, n - done);
      load_values(call, input, piece, from, now, wanted);
      piece.codec->encode(wanted, DType::kFloat32, dtype, piece.count, from, now, key, piece.index,
                          payload + piece.payload);
      piece.codec->decode(payload + piece.payload, dtype, piece.count, from, now, sent, false);
      if (final) round_to(dtype, now, sent, sent + block);
      keep_error(call, piece, from, now, wanted, sent, 1, false);
    }
  });
}

}  // namespace

namespace {

// The rank in the key. Which rank of a host contributes the host's sum depends on the layout of the
// call. With a step it must not matter, as a resumed training may lay out its first step otherwise.
int source_of(const Call& call, Stage stage) {
  const int rank = call.identity.rank;
  const bool sum_of_host = call.plan.two_levels && call.plan.operation == Operation::kAllReduce &&
                           stage == Stage::kContribution;
  if (!call.identity.key || !sum_of_host) return rank;
  return call.topology.host(call.topology.host_of(rank)).front();
}

}  // namespace

RandomKey key_of(const Call& call, uint64_t seed, Stage stage) {
  const CallIdentity& identity = call.identity;
  const uint64_t number = identity.key ? identity.key->number() : identity.sequence;
  return random_key(seed, number, source_of(call, stage), static_cast<int>(stage));
}

void encode_chunks(Call& call, const std::vector<ChunkToSend>& chunks, const View& input,
                   Stage stage, bool final) {
  if (call.device != nullptr) {
    StageTimer timer(call.stats.encode_ns, "cgx:encode");
    return call.device->encode(call, chunks, input, stage, final);
  }
  for (const ChunkToSend& out : chunks) {
    encode_chunk(call, *out.chunk, input, stage, out.payload, final);
  }
}

void decode_chunks(Call& call, const std::vector<ReceivedChunk>& chunks, const View& output) {
  if (call.device != nullptr) {
    StageTimer timer(call.stats.decode_ns, "cgx:decode");
    return call.device->decode(call, chunks, output);
  }
  for (const ReceivedChunk& in : chunks) decode_chunk(call, *in.chunk, in.payload, output);
}

void copy_bytes(Call& call, void* to, const void* from, size_t bytes) {
  if (call.device != nullptr) return call.device->copy(to, from, bytes);
  if (bytes > 0) std::memmove(to, from, bytes);
}

void encode_chunk(Call& call, const Chunk& chunk, const View& input, Stage stage,
                  std::byte* payload, bool final) {
  if (call.device != nullptr) return encode_chunks(call, {{&chunk, payload}}, input, stage, final);
  StageTimer timer(call.stats.encode_ns, "cgx:encode");
  begin_payloads(call, chunk, stage, payload);
  if (call.residual.base != nullptr) {
    encode_with_residual(call, chunk, input, stage, payload, final);
  } else {
    spread(call, chunk, parts_of(call, chunk),
           [&](const Piece& piece, size_t first, size_t n, size_t) {
             piece.codec->encode(input.at(piece, first), input.dtype, call.plan.dtype, piece.count,
                                 first, n, key_of(call, piece.codec->seed(), stage), piece.index,
                                 payload + piece.payload);
           });
  }
  if (call.nonfinite != NonFinite::kRaise) return;
  for (const Piece& piece : chunk.pieces) {
    if (!piece.codec->holds_finite(payload + piece.payload, call.plan.dtype, piece.count)) {
      call.met_nonfinite = true;
    }
  }
}

void decode_chunk(Call& call, const Chunk& chunk, const std::byte* payload, const View& output) {
  if (call.device != nullptr) return decode_chunks(call, {{&chunk, payload}}, output);
  StageTimer timer(call.stats.decode_ns, "cgx:decode");
  const DType dtype = call.plan.dtype;
  const size_t parts = parts_of(call, chunk);
  if (output.dtype == DType::kFloat32) {
    return spread(call, chunk, parts, [&](const Piece& piece, size_t first, size_t n, size_t) {
      piece.codec->decode(payload + piece.payload, dtype, piece.count, first, n,
                          reinterpret_cast<float*>(output.at(piece, first)), false);
    });
  }
  const Scratch scratch(call, chunk, parts, 1);
  spread(call, chunk, parts, [&](const Piece& piece, size_t first, size_t n, size_t part) {
    const size_t block = block_values(*piece.codec);
    float* y = scratch.of(part);
    for (size_t done = 0; done < n; done += block) {
      const size_t now = std::min(block, n - done);
      piece.codec->decode(payload + piece.payload, dtype, piece.count, first + done, now, y, false);
      from_float(y, output.dtype, now, output.at(piece, first + done));
    }
  });
}

void sum_chunk(Call& call, const Chunk& chunk, const Sum& wanted) {
  StageTimer timer(call.stats.decode_ns, "cgx:decode");
  if (call.device != nullptr) return call.device->sum(call, chunk, wanted);
  const size_t parts = parts_of(call, chunk);
  const Scratch scratch(call, chunk, parts, 2);
  Summing summing(call, wanted);
  if (wanted.encoded != nullptr) begin_payloads(call, chunk, Stage::kSum, wanted.encoded);
  spread(call, chunk, parts, [&](const Piece& piece, size_t first, size_t n, size_t part) {
    summing.run(piece, first, n, scratch.of(part));
  });
  if (summing.met_nonfinite()) call.met_nonfinite = true;
}

void add_residual(Call& call, void* data, size_t values) {
  if (call.residual.base == nullptr || values == 0) return;
  // The whole tensor as one exact piece, by its places in the residual.
  Chunk all;
  all.pieces.push_back({.offset = call.residual.first_value,
                        .count = values,
                        .codec = raw_codec().get(),
                        .payload = 0,
                        .bytes = values * size_of(call.plan.dtype),
                        .packed = 0,
                        .index = 0});
  all.values = values;
  const View view{static_cast<std::byte*>(data), call.residual.first_value, call.plan.dtype, false,
                  true};
  encode_chunk(call, all, view, Stage::kContribution, view.base);
}

void check_input(Call& call, const void* data, size_t values) {
  if (call.device != nullptr) return call.device->check_input(call, data, values);
  if (call.nonfinite != NonFinite::kRaise) return;
  const View& residual = call.residual;
  if (!all_finite(data, call.plan.dtype, values) ||
      (residual.base != nullptr && !all_finite(residual.base, residual.dtype, values))) {
    call.met_nonfinite = true;
  }
}

}  // namespace cgx
