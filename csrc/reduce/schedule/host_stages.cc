#include "reduce/schedule/host_stages.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/float_mode.h"
#include "codec/ops/convert.h"
#include "codec/ops/finite.h"
#include "reduce/schedule/combine.h"
#include "reduce/schedule/residual.h"

namespace cgx {
namespace {

// Values that are worked on at once, a slice: 64 KiB of fp32, so that a slice and its encodings stay
// in the second-level cache. A slice is whole blocks of the codec.
constexpr size_t kSliceValues = 16 * 1024;

size_t slice_values(const Codec& codec) {
  const size_t block = codec.block();
  return block >= kSliceValues ? block : kSliceValues / block * block;
}

// Values that a thread gets, at least: below, waking it costs more than it does.
constexpr size_t kValuesPerThread = 64 * 1024;

// The place in a run at which a thread's part of a chunk ends: a border of the codec's blocks.
size_t cut(const Run& run, size_t value) {
  if (value <= run.packed) return 0;
  const size_t inside = value - run.packed;
  if (inside >= run.count) return run.count;
  const size_t block = run.codec->block();
  return inside / block * block;
}

/// Calls work(run, first, n, part) for values [first, first + n) of runs, which cover the chunk, on
/// the threads that there are: `part` numbers the thread's part, below the result of parts_of().
template <typename Work>
void spread(const Parallel* parallel, const Chunk& chunk, size_t parts, const Work& work) {
  if (parts <= 1) {
    for (const Run& run : chunk.runs) work(run, size_t{0}, run.count, size_t{0});
    return;
  }
  parallel->run(parts, [&](size_t part) {
    FloatMode ieee;  // of this thread: a pool inherits the mode of the thread that started it
    const size_t share = chunk.values / parts;
    const size_t from = share * part;
    const size_t to = part + 1 == parts ? chunk.values : from + share;
    for (const Run& run : chunk.runs) {
      const size_t first = cut(run, from), last = cut(run, to);
      if (first < last) work(run, first, last - first, part);
    }
  });
}

size_t parts_of(const Parallel* parallel, const Chunk& chunk) {
  if (parallel == nullptr || chunk.values < 2 * kValuesPerThread) return 1;
  return std::min(static_cast<size_t>(parallel->threads()), chunk.values / kValuesPerThread);
}

// Room for `slices` slices of fp32 values of the largest run, for each part.
class Scratch {
 public:
  Scratch(std::vector<float>& room, const Chunk& chunk, size_t parts, size_t slices) {
    for (const Run& run : chunk.runs) {
      values_ = std::max(values_, slices * std::min(slice_values(*run.codec), run.count));
    }
    // A line apart, so that no two threads write to the same one.
    values_ = (values_ + 15) / 16 * 16;
    if (room.size() < parts * values_) room.resize(parts * values_);
    data_ = room.data();
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

bool is_exact_float32(const Run& run, DType dtype) {
  return dtype == DType::kFloat32 && run.codec == raw_codec().get();
}

// Sums one chunk; add() may be called on several threads at once.
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

  // The values [first, first + n) of a run; room for two slices at `scratch`.
  void add(const Run& run, size_t first, size_t n, float* scratch) {
    const size_t slice = slice_values(*run.codec);
    for (size_t done = 0; done < n; done += slice) {
      one_slice(run, first + done, std::min(slice, n - done), scratch);
    }
  }

 private:
  void one_slice(const Run& run, size_t first, size_t n, float* scratch) {
    std::byte* out = kept_ ? wanted_.output.at(run, first) : nullptr;
    float* sum = in_place_ ? reinterpret_cast<float*>(out) : scratch;
    float* mine = scratch + std::min(slice_values(*run.codec), run.count);
    add_up(run, first, n, sum, mine);
    if (wanted_.divisor != 1) divide(sum, n, wanted_.divisor);
    float* got = sum;  // what the ranks get
    if (wanted_.encoded != nullptr) {
      std::byte* encoded = wanted_.encoded + run.payload;
      run.codec->encode(sum, DType::kFloat32, dtype_, run.count, first, n,
                        key_of(call_, run.codec->seed(), Stage::kSum), run.index, encoded);
      if (!kept_ && !feeds_back_) return;
      if (as_float_) {
        got = reinterpret_cast<float*>(out);
      } else if (feeds_back_) {
        got = mine;
      }
      run.codec->decode(encoded, dtype_, run.count, first, n, got, false);
    }
    if (kept_ && reinterpret_cast<std::byte*>(got) != out) {
      from_float(got, wanted_.output.dtype, n, out);
    }
    if (feeds_back_) {
      if (kept_ && !as_float_) to_float(out, wanted_.output.dtype, n, got = mine);
      keep_error(call_, run, first, n, sum, got, wanted_.divisor,
                 wanted_.feedback == Feedback::kAdd);
    }
    // Finite inputs may overflow in the sum, or when it is rounded to 16 bits.
    if (wanted_.final && call_.nonfinite == NonFinite::kRaise &&
        !all_finite(out, wanted_.output.dtype, n)) {
      met_nonfinite_ = true;
    }
  }

  // In the order of the payloads.
  void add_up(const Run& run, size_t first, size_t n, float* sum, float* mine) {
    size_t next = 0;
    if (is_exact_float32(run, dtype_) && wanted_.payloads.size() >= 2 && !adds_residual_) {
      add_pair(exact(run, first, 0), exact(run, first, 1), n, sum);
      next = 2;
    }
    for (; next < wanted_.payloads.size(); ++next) {
      const std::byte* payload = wanted_.payloads[next];
      if (payload != nullptr) {
        run.codec->decode(payload + run.payload, dtype_, run.count, first, n, sum, next > 0);
      } else if (adds_residual_) {
        load_values(call_, wanted_.own, run, first, n, next > 0 ? mine : sum);
        if (next > 0) add_pair(sum, mine, n, sum);
      } else if (next > 0) {
        add_to_float(wanted_.own.at(run, first), wanted_.own.dtype, n, sum);
      } else {
        to_float(wanted_.own.at(run, first), wanted_.own.dtype, n, sum);
      }
    }
  }

  // The fp32 values of a summand of an exact run.
  const float* exact(const Run& run, size_t first, size_t index) const {
    const std::byte* payload = wanted_.payloads[index];
    const bool own = static_cast<int>(index) == wanted_.own_index || payload == nullptr;
    if (own && wanted_.own.base != nullptr) return as_float32(wanted_.own.at(run, first));
    return as_float32(payload + run.payload) + first;
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

// Under kRaise, where values are summed. For MIN and MAX an Inf is a value like others: it marks
// what is missing.
bool looks_for_nonfinite(const Call& call) {
  return call.nonfinite == NonFinite::kRaise && call.plan.combine == Combine::kSum;
}

// Combines one chunk in its own type; run() may be called on several threads at once.
class Combining {
 public:
  Combining(Call& call, const Sum& wanted)
      : call_(call), wanted_(wanted), dtype_(call.plan.dtype), raises_(looks_for_nonfinite(call)) {}

  bool met_nonfinite() const { return met_nonfinite_; }

  // The values [first, first + n) of a run.
  void run(const Run& run, size_t first, size_t n) {
    std::vector<const std::byte*> in(wanted_.payloads.size());
    const size_t slice = slice_values(*run.codec);
    for (size_t done = 0; done < n; done += slice) {
      one_slice(run, first + done, std::min(slice, n - done), in);
    }
  }

 private:
  void one_slice(const Run& run, size_t first, size_t n, std::vector<const std::byte*>& in) {
    const size_t place = run.payload + first * size_of(dtype_);
    for (size_t i = 0; i < in.size(); ++i) {
      const std::byte* payload = wanted_.payloads[i];
      const bool own = static_cast<int>(i) == wanted_.own_index && wanted_.own.base != nullptr;
      in[i] = payload == nullptr || own ? wanted_.own.at(run, first) : payload + place;
    }
    const bool kept = wanted_.output.base != nullptr;
    std::byte* out = kept ? wanted_.output.at(run, first) : nullptr;
    std::byte* sent = wanted_.encoded != nullptr ? wanted_.encoded + place : nullptr;
    std::byte* result = sent != nullptr ? sent : out;
    combine(call_.plan.combine, dtype_, in, n, wanted_.divisor, result);
    if (kept && result != out) std::memcpy(out, result, n * size_of(dtype_));
    if (wanted_.final && raises_ && !values_finite(dtype_, result, n)) met_nonfinite_ = true;
  }

  Call& call_;
  const Sum& wanted_;
  const DType dtype_;
  const bool raises_;
  std::atomic<bool> met_nonfinite_{false};
};

// Of all payloads of a chunk, before threads encode their parts.
void begin_payloads(const Call& call, const Chunk& chunk, Stage stage, std::byte* payload) {
  for (const Run& run : chunk.runs) {
    run.codec->begin(key_of(call, run.codec->seed(), stage), run.index, run.count,
                     payload + run.payload);
  }
}

}  // namespace

HostStages::HostStages(std::unique_ptr<const Parallel> parallel) : parallel_(std::move(parallel)) {}

std::shared_ptr<std::byte> HostStages::allocate(size_t bytes) {
  auto* data = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
  if (data == nullptr) throw ResourceError(str_of("cannot allocate ", bytes, " bytes"));
  return {data, [](std::byte* memory) { std::free(memory); }};
}

void HostStages::copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

void HostStages::encode(Call& call, std::span<const ChunkToSend> chunks, const View& input,
                        Stage stage, bool final) {
  for (const ChunkToSend& out : chunks) {
    encode_one(call, *out.chunk, input, stage, out.payload, final);
  }
}

void HostStages::decode(Call& call, std::span<const ReceivedChunk> chunks, const View& output) {
  for (const ReceivedChunk& in : chunks) decode_one(call, *in.chunk, in.payload, output);
}

void HostStages::encode_one(Call& call, const Chunk& chunk, const View& input, Stage stage,
                            std::byte* payload, bool final) {
  StageTimer timer(call.stats.encode_ns, "cgx:encode");
  begin_payloads(call, chunk, stage, payload);
  if (call.residual.base != nullptr) {
    encode_with_residual(call, chunk, input, stage, payload, final);
  } else {
    spread(parallel_.get(), chunk, parts_of(parallel_.get(), chunk),
           [&](const Run& run, size_t first, size_t n, size_t) {
             run.codec->encode(input.at(run, first), input.dtype, call.plan.dtype, run.count, first,
                               n, key_of(call, run.codec->seed(), stage), run.index,
                               payload + run.payload);
           });
  }
  if (call.nonfinite != NonFinite::kRaise) return;
  for (const Run& run : chunk.runs) {
    if (!run.codec->holds_finite(payload + run.payload, call.plan.dtype, run.count)) {
      call.met_nonfinite = true;
    }
  }
}

void HostStages::decode_one(Call& call, const Chunk& chunk, const std::byte* payload,
                            const View& output) {
  StageTimer timer(call.stats.decode_ns, "cgx:decode");
  const DType dtype = call.plan.dtype;
  const size_t parts = parts_of(parallel_.get(), chunk);
  if (!call.plan.sums_in_float32()) {
    return spread(parallel_.get(), chunk, parts,
                  [&](const Run& run, size_t first, size_t n, size_t) {
                    std::memcpy(output.at(run, first),
                                payload + run.payload + first * size_of(dtype), n * size_of(dtype));
                  });
  }
  if (output.dtype == DType::kFloat32) {
    return spread(parallel_.get(), chunk, parts,
                  [&](const Run& run, size_t first, size_t n, size_t) {
                    run.codec->decode(payload + run.payload, dtype, run.count, first, n,
                                      reinterpret_cast<float*>(output.at(run, first)), false);
                  });
  }
  const Scratch scratch(scratch_, chunk, parts, 1);
  spread(parallel_.get(), chunk, parts, [&](const Run& run, size_t first, size_t n, size_t part) {
    const size_t slice = slice_values(*run.codec);
    float* y = scratch.of(part);
    for (size_t done = 0; done < n; done += slice) {
      const size_t now = std::min(slice, n - done);
      run.codec->decode(payload + run.payload, dtype, run.count, first + done, now, y, false);
      from_float(y, output.dtype, now, output.at(run, first + done));
    }
  });
}

void HostStages::sum(Call& call, const Chunk& chunk, const Sum& wanted) {
  StageTimer timer(call.stats.decode_ns, "cgx:decode");
  const size_t parts = parts_of(parallel_.get(), chunk);
  if (!call.plan.sums_in_float32()) {
    Combining combining(call, wanted);
    spread(parallel_.get(), chunk, parts,
           [&](const Run& run, size_t first, size_t n, size_t) { combining.run(run, first, n); });
    if (combining.met_nonfinite()) call.met_nonfinite = true;
    return;
  }
  const Scratch scratch(scratch_, chunk, parts, 2);
  Summing summing(call, wanted);
  if (wanted.encoded != nullptr) begin_payloads(call, chunk, Stage::kSum, wanted.encoded);
  spread(parallel_.get(), chunk, parts, [&](const Run& run, size_t first, size_t n, size_t part) {
    summing.add(run, first, n, scratch.of(part));
  });
  if (summing.met_nonfinite()) call.met_nonfinite = true;
}

void HostStages::check_input(Call& call, const void* data, size_t values) {
  if (!looks_for_nonfinite(call)) return;
  const View& residual = call.residual;
  if (!values_finite(call.plan.dtype, static_cast<const std::byte*>(data), values) ||
      (residual.base != nullptr && !all_finite(residual.base, residual.dtype, values))) {
    call.met_nonfinite = true;
  }
}

// Slice by slice: a value, its encoding and its residual are touched while they are in the cache.
void HostStages::encode_with_residual(Call& call, const Chunk& chunk, const View& input,
                                      Stage stage, std::byte* payload, bool final) {
  const DType dtype = call.plan.dtype;
  const size_t parts = parts_of(parallel_.get(), chunk);
  const Scratch scratch(scratch_, chunk, parts, 3);
  spread(parallel_.get(), chunk, parts, [&](const Run& run, size_t first, size_t n, size_t part) {
    const RandomKey key = key_of(call, run.codec->seed(), stage);
    const size_t slice = std::min(slice_values(*run.codec), run.count);
    float* wanted = scratch.of(part);
    float* sent = wanted + slice;
    for (size_t done = 0; done < n; done += slice) {
      const size_t from = first + done, now = std::min(slice, n - done);
      load_values(call, input, run, from, now, wanted);
      run.codec->encode(wanted, DType::kFloat32, dtype, run.count, from, now, key, run.index,
                        payload + run.payload);
      run.codec->decode(payload + run.payload, dtype, run.count, from, now, sent, false);
      if (final) round_to(dtype, now, sent, sent + slice);
      keep_error(call, run, from, now, wanted, sent, 1, false);
    }
  });
}

}  // namespace cgx
