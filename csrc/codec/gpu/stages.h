// The stages of a reduction, tile by tile: encode, decode, and sum of the ranks' contributions.
//
// `Block` runs a phase on all threads and waits for them: a thread block on the device, a loop on
// the host (tests/device/host_kernels.h).
//   phase(work)              work(t) on each thread t
//   team_phase(lanes, work)  work(t, team), for threads that exchange values in teams of at most
//                            `lanes` neighbours, a power of two up to 32: team.lanes says how many
//                            they are, team.exchange(value, step) gives the value of the thread
//                            whose number differs by `step`, a power of two less than team.lanes
//   Kept                     a thread's own values of a tile, from phase to phase: at(t, k) of
//                            thread t, for the tile's value t + k * kThreads
//
// What a stage does with coded values is the families': see families.h.
#pragma once

#include "codec/gpu/families.h"

namespace cgx::gpu {

/// Error feedback (reduce/schedule/residual.h). A run's `index` is its place in the residual.
struct Feedback {
  enum class Keep : uint8_t { kNothing, kSet, kAdd };
  unsigned char* residual;  // of place 0; null without error feedback
  Type type;                // float32 or bfloat16
  Type rounded;             // what decoded values are rounded to
  uint8_t plus;             // own values are added to the residual first
  Keep keep;
};

struct EncodeCall {
  Table table;
  const unsigned char* x;  // the call's tensor
  RandomKey key;
  Type type;
  unsigned char* messages[kMostMessages];
  Feedback feedback;
};

struct DecodeCall {
  Table table;
  unsigned char* y;
  Type type;
  uint8_t add;  // y += value, of float32 only
  const unsigned char* messages[kMostMessages];
};

/// The sum of `ranks` payloads of one chunk, in their order; null: this rank's own values, from x.
/// The sum, divided, goes encoded to `encoded`, which is none of the payloads, and as its receivers
/// will decode it to y. Either may be null: without `encoded` y gets the sum unrounded.
struct SumCall {
  Table table;
  const unsigned char* x;
  unsigned char* encoded;
  unsigned char* y;
  RandomKey key;
  float divisor;
  uint32_t ranks;
  Type own;   // of x
  Type type;  // of y
  const unsigned char* payloads[kMostMessages];
  Feedback feedback;
};

/// One word, which threads of several thread blocks may write, and with the same value, at once.
CGX_HD void store_at_once(uint32_t* to, uint32_t word) {
#if defined(__CUDA_ARCH__)
  uint64_t at;
  asm("cvta.to.global.u64 %0, %1;" : "=l"(at) : "l"(to));
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
#else
  __atomic_store_n(to, word, __ATOMIC_RELAXED);
#endif
}

/// Sets *met to 1 where a value of x is not finite; without x, a value that the messages decode to.
struct FiniteCall {
  Table table;
  const unsigned char* x;
  uint32_t* met;
  Type type;  // of x
  const unsigned char* messages[kMostMessages];
};

/// Values of a tile from a message, or added to shared.values.
template <Needs needs = Needs::kAll, typename Block, typename Families>
CGX_HD void decode_tile(Block& block, BlockMemory<Families>& memory, const Tile& tile,
                        const unsigned char* message, bool add) {
  Shared& shared = memory.shared;
  if (needs == Needs::kAll && tile.run.family == kRaw) {
    return block.phase([&](uint32_t t) {
      load_phase(shared, tile, message + tile.raw_at(), tile.run.wire, add, t);
    });
  }
  Families::template with<needs>(tile.run.family, memory.family, [&](auto family, auto& own) {
    decltype(family)::decode(block, shared, own, tile, message, add);
  });
}

/// shared.values to a message.
template <typename Block, typename Families>
CGX_HD void encode_tile(Block& block, BlockMemory<Families>& memory, const Tile& tile,
                        RandomKey key, unsigned char* message) {
  Shared& shared = memory.shared;
  if (tile.run.family == kRaw) {
    return block.phase(
        [&](uint32_t t) { store_phase(shared, tile, message + tile.raw_at(), tile.run.wire, t); });
  }
  Families::template with<Needs::kAll>(tile.run.family, memory.family, [&](auto family, auto& own) {
    decltype(family)::encode(block, shared, own, tile, key, message);
  });
}

/// Decodes to shared.values the message that encode_tile() has just written.
template <typename Block, typename Families>
CGX_HD void decode_encoded_tile(Block& block, BlockMemory<Families>& memory, const Tile& tile,
                                const unsigned char* message) {
  if (tile.run.family == kRaw) return decode_tile(block, memory, tile, message, false);
  Families::template with<Needs::kAll>(tile.run.family, memory.family, [&](auto family, auto& own) {
    decltype(family)::decode_again(block, memory.shared, own, tile);
  });
}

/// This rank's values of a tile into shared.values, or added to them. with_feedback: the residual
/// is added first, where the call asks for it.
template <bool with_feedback, typename Block>
CGX_HD void load_own(Block& block, Shared& shared, const Tile& tile, const unsigned char* x,
                     Type type, bool add, const Feedback& feedback) {
  if constexpr (with_feedback) {
    if (feedback.plus) {
      return block.phase([&](uint32_t t) {
        load_with_residual_phase(shared, tile, x, type, feedback.residual, feedback.type, add, t);
      });
    }
  }
  block.phase([&](uint32_t t) { load_phase(shared, tile, x, type, add, t); });
}

/// Remembers shared.values.
template <typename Block>
CGX_HD void keep_values(Block& block, const Shared& shared, const Tile& tile,
                        typename Block::Kept& kept) {
  block.phase([&](uint32_t t) {
    CGX_UNROLL for (uint32_t k = 0; k < kLongestTile / kThreads; ++k) {
      const uint32_t i = t + k * kThreads;
      if (i < tile.n) kept.at(t, k) = shared.values[i];
    }
  });
}

/// The residual gets what was kept, less shared.values, times the divisor; where that is not
/// finite, it stays.
template <typename Block>
CGX_HD void keep_error(Block& block, const Shared& shared, const Tile& tile,
                       typename Block::Kept& kept, const Feedback& feedback, float divisor) {
  const uint32_t bytes = size_of(feedback.type);
  unsigned char* residual = feedback.residual + tile.residual_at(feedback.type);
  block.phase([&](uint32_t t) {
    CGX_UNROLL for (uint32_t k = 0; k < kLongestTile / kThreads; ++k) {
      const uint32_t i = t + k * kThreads;
      if (i >= tile.n) continue;
      const float sent = widen(narrow(shared.values[i], feedback.rounded), feedback.rounded);
      float error = rn_mul(rn_sub(kept.at(t, k), sent), divisor);
      unsigned char* at = residual + i * bytes;
      if (feedback.keep == Feedback::Keep::kAdd) {
        error = rn_add(error, widen(load_word(at, bytes), feedback.type));
      }
      const uint32_t word = narrow(error, feedback.type);
      if (is_finite(widen(word, feedback.type))) store_word(at, bytes, word);
    }
  });
}

template <bool with_feedback, typename Block, typename Families>
CGX_HD void encode_one_tile(Block& block, BlockMemory<Families>& memory, const EncodeCall& call,
                            uint64_t number) {
  const Tile tile = tile_of(call.table, number);
  unsigned char* message = call.messages[tile.run.message];
  const unsigned char* x = call.x + tile.value_at(call.type);
  if (!with_feedback && tile.run.family == kRaw && tile.run.wire == call.type) {
    const uint32_t bytes = tile.n * size_of(call.type);  // as they are, also the bits of a NaN
    return block.phase([&](uint32_t t) { copy_values(message + tile.raw_at(), x, bytes, t); });
  }
  load_own<with_feedback>(block, memory.shared, tile, x, call.type, false, call.feedback);
  if constexpr (!with_feedback) return encode_tile(block, memory, tile, call.key, message);
  typename Block::Kept kept;
  keep_values(block, memory.shared, tile, kept);
  encode_tile(block, memory, tile, call.key, message);
  decode_encoded_tile(block, memory, tile, message);
  keep_error(block, memory.shared, tile, kept, call.feedback, 1.0f);
}

template <typename Block, typename Families>
CGX_HD void encode_stage(Block& block, BlockMemory<Families>& memory, const EncodeCall& call,
                         uint64_t number) {
  encode_one_tile<false>(block, memory, call, number);
}
/// With error feedback; the same for the other stages.
template <typename Block, typename Families>
CGX_HD void encode_feedback_stage(Block& block, BlockMemory<Families>& memory,
                                  const EncodeCall& call, uint64_t number) {
  encode_one_tile<true>(block, memory, call, number);
}

template <typename Block, typename Families>
CGX_HD void decode_stage(Block& block, BlockMemory<Families>& memory, const DecodeCall& call,
                         uint64_t number) {
  const Tile tile = tile_of(call.table, number);
  unsigned char* y = call.y + tile.value_at(call.type);
  if (call.add) {
    block.phase([&](uint32_t t) { load_phase(memory.shared, tile, y, call.type, false, t); });
  }
  decode_tile(block, memory, tile, call.messages[tile.run.message], call.add);
  block.phase([&](uint32_t t) { store_phase(memory.shared, tile, y, call.type, t); });
}

/// The sum of a tile in shared.values.
template <bool with_feedback, Needs needs = Needs::kAll, typename Block, typename Families>
CGX_HD void sum_tile(Block& block, BlockMemory<Families>& memory, const SumCall& call,
                     const Tile& tile) {
  Shared& shared = memory.shared;
  CGX_LOOP for (uint32_t r = 0; r < call.ranks; ++r) {
    const bool add = r > 0;
    if (call.payloads[r] != nullptr) {
      decode_tile<needs>(block, memory, tile, call.payloads[r], add);
    } else {
      const unsigned char* own = call.x + tile.value_at(call.own);
      load_own<with_feedback>(block, shared, tile, own, call.own, add, call.feedback);
    }
  }
  if (call.divisor == 1.0f) return;
  block.phase([&](uint32_t t) {
    for (uint32_t i = t; i < tile.n; i += kThreads) {
      shared.values[i] = rn_div(shared.values[i], call.divisor);
    }
  });
}

/// Meta of a bucket that does not fit a tile, into the message. `fill` brings the values of a tile
/// into shared.values; own: the family's memory.
template <typename Family, typename Block, typename Memory, typename Fill>
CGX_HD void long_bucket(Block& block, const Shared& shared, Memory& own, const CodecRun& run,
                        uint64_t bucket, unsigned char* message, const Fill& fill) {
  const uint64_t start = bucket * run.bucket;
  const uint64_t end = run.count - start < run.bucket ? run.count : start + run.bucket;
  block.phase([&](uint32_t t) { Family::begin_bucket(own, t); });
  for (uint64_t first = start / 8 * 8; first < end; first += kTile) {
    const uint64_t left = end - first;
    const Tile tile = tile_in(run, first, static_cast<uint32_t>(left < kTile ? left : kTile));
    fill(tile);
    const uint32_t from = first < start ? static_cast<uint32_t>(start - first) : 0;
    block.phase([&](uint32_t t) { Family::see(shared, own, from, tile.n, t); });
  }
  Family::end_bucket(block, own, run, bucket, message);
}

CGX_HD CodecRun long_run(const Table& table, uint64_t number) {
  if (table.n_runs == 1) return table.only;
  uint32_t low = 0, high = table.n_runs;  // the last run whose first bucket is not behind `number`
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (table.runs[middle].first_long <= number ? low : high) = middle;
  }
  return table.runs[low];
}

/// Writes the meta of bucket `number` of all long buckets. Runs before encode_stage() and
/// sum_stage().
template <bool with_feedback, typename Block, typename Families>
CGX_HD void encode_long_bucket(Block& block, BlockMemory<Families>& memory, const EncodeCall& call,
                               uint64_t number) {
  const CodecRun run = long_run(call.table, number);
  const auto fill = [&](const Tile& tile) {
    load_own<with_feedback>(block, memory.shared, tile, call.x + tile.value_at(call.type),
                            call.type, false, call.feedback);
  };
  Families::template with<Needs::kLongBuckets>(
      run.family, memory.family, [&](auto family, auto& own) {
        long_bucket<decltype(family)>(block, memory.shared, own, run, number - run.first_long,
                                      call.messages[run.message], fill);
      });
}
template <bool with_feedback, typename Block, typename Families>
CGX_HD void sum_long_bucket(Block& block, BlockMemory<Families>& memory, const SumCall& call,
                            uint64_t number) {
  const CodecRun run = long_run(call.table, number);
  const auto fill = [&](const Tile& tile) {
    sum_tile<with_feedback, Needs::kLongBuckets>(block, memory, call, tile);
  };
  Families::template with<Needs::kLongBuckets>(
      run.family, memory.family, [&](auto family, auto& own) {
        long_bucket<decltype(family)>(block, memory.shared, own, run, number - run.first_long,
                                      call.encoded, fill);
      });
}

template <typename Block, typename Families>
CGX_HD void long_encode_stage(Block& block, BlockMemory<Families>& memory, const EncodeCall& call,
                              uint64_t number) {
  encode_long_bucket<false>(block, memory, call, number);
}
template <typename Block, typename Families>
CGX_HD void long_encode_feedback_stage(Block& block, BlockMemory<Families>& memory,
                                       const EncodeCall& call, uint64_t number) {
  encode_long_bucket<true>(block, memory, call, number);
}
template <typename Block, typename Families>
CGX_HD void long_sum_stage(Block& block, BlockMemory<Families>& memory, const SumCall& call,
                           uint64_t number) {
  sum_long_bucket<false>(block, memory, call, number);
}
template <typename Block, typename Families>
CGX_HD void long_sum_feedback_stage(Block& block, BlockMemory<Families>& memory,
                                    const SumCall& call, uint64_t number) {
  sum_long_bucket<true>(block, memory, call, number);
}

template <typename Block, typename Families>
CGX_HD void sum_stage(Block& block, BlockMemory<Families>& memory, const SumCall& call,
                      uint64_t number) {
  const Tile tile = tile_of(call.table, number);
  sum_tile<false>(block, memory, call, tile);
  if (call.encoded != nullptr) encode_tile(block, memory, tile, call.key, call.encoded);
  if (call.y == nullptr) return;
  if (call.encoded != nullptr) decode_encoded_tile(block, memory, tile, call.encoded);
  unsigned char* y = call.y + tile.sum_at(call.type);
  block.phase([&](uint32_t t) { store_phase(memory.shared, tile, y, call.type, t); });
}

template <typename Block, typename Families>
CGX_HD void sum_feedback_stage(Block& block, BlockMemory<Families>& memory, const SumCall& call,
                               uint64_t number) {
  const Tile tile = tile_of(call.table, number);
  typename Block::Kept kept;
  sum_tile<true>(block, memory, call, tile);
  keep_values(block, memory.shared, tile, kept);
  if (call.encoded != nullptr) {
    encode_tile(block, memory, tile, call.key, call.encoded);
    decode_encoded_tile(block, memory, tile, call.encoded);
  }
  // Looked up again, so that no register keeps it until here.
  const Tile same = tile_of(call.table, number);
  if (call.y != nullptr) {
    unsigned char* y = call.y + same.sum_at(call.type);
    block.phase([&](uint32_t t) { store_phase(memory.shared, same, y, call.type, t); });
  }
  if (call.feedback.keep == Feedback::Keep::kNothing) return;
  keep_error(block, memory.shared, same, kept, call.feedback, call.divisor);
}

template <typename Block, typename Families>
CGX_HD void finite_stage(Block& block, BlockMemory<Families>& memory, const FiniteCall& call,
                         uint64_t number) {
  Shared& shared = memory.shared;
  const Tile tile = tile_of(call.table, number);
  if (call.x != nullptr) {
    const unsigned char* x = call.x + tile.value_at(call.type);
    block.phase([&](uint32_t t) { load_phase(shared, tile, x, call.type, false, t); });
  } else {
    decode_tile(block, memory, tile, call.messages[tile.run.message], false);
  }
  block.phase([&](uint32_t t) {
    if (!all_finite_phase(shared, tile, t)) store_at_once(call.met, 1);
  });
}

}  // namespace cgx::gpu
