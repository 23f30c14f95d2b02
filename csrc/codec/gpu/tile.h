// The work of a thread block on one tile, in phases. Between two phases all threads wait for each
// other; inside a phase a thread writes nothing that another one reads. So the host can run the
// same code, thread by thread, in its tests (tests/device/host_kernels.h). Here is what all
// families share; families.h says what each of them adds.
#pragma once

#include "base/half.h"
#include "base/unroll.h"
#include "codec/gpu/run.h"
#include "codec/ops/random.h"

namespace cgx::gpu {

/// The values of a tile in shared memory: a word is left out after every eighth one, so that
/// threads which work on groups of eight read from different banks.
struct Values {
  float words[kLongestTile + kLongestTile / 8];
  CGX_HD float& operator[](uint32_t i) { return words[i + i / 8]; }
  CGX_HD const float& operator[](uint32_t i) const { return words[i + i / 8]; }
};

/// What the threads of a thread block share, whatever the family.
struct Shared {
  Values values;
  alignas(16) unsigned char codes[kLongestTile + 16];
};

/// The part of a run that a tile covers.
struct Tile {
  CodecRun run;      // a copy: memory would be read again behind every barrier
  uint64_t first;    // value of the run
  uint32_t n;        // values
  uint64_t bucket;   // of the first value
  uint32_t buckets;  // begun or continued here

  CGX_HD uint32_t code_bytes() const { return (n * run.bits + 7) / 8; }
  CGX_HD uint64_t codes_at() const { return run.codes + first / 8 * run.bits; }
  /// Bytes from the start of a tensor, and of the message, to the first value.
  CGX_HD uint64_t value_at(Type type) const;
  CGX_HD uint64_t sum_at(Type type) const;
  CGX_HD uint64_t raw_at() const;
  CGX_HD uint64_t residual_at(Type type) const;
};

/// The values [first, first + n) of a run, also of one whose buckets cross them.
CGX_HD Tile tile_in(const CodecRun& run, uint64_t first, uint32_t n) {
  if (run.bucket == 0) return {run, first, n, 0, 0};
  const uint64_t bucket = first / run.bucket;
  const uint64_t last = (first + n - 1) / run.bucket;
  return {run, first, n, bucket, static_cast<uint32_t>(last - bucket + 1)};
}

CGX_HD CodecRun run_of(const Table& table, uint64_t tile) {
  return table.n_runs == 1 ? table.only : table.runs[table.run_of_tile[tile]];
}

CGX_HD Tile tile_of(const Table& table, uint64_t number) {
  const CodecRun run = run_of(table, number);
  const uint64_t index = number - run.first_tile;
  const uint64_t first = run.start + index * run.tile;
  const uint64_t left = run.count - first;
  const uint32_t n = left < run.tile ? static_cast<uint32_t>(left) : run.tile;
  if (run.tile_buckets == 0) return tile_in(run, first, n);
  // Without a division of 64 bits, which takes a GPU a hundred instructions.
  const uint32_t bucket = static_cast<uint32_t>(run.bucket);
  const uint32_t buckets = n == run.tile ? run.tile_buckets : (n + bucket - 1) / bucket;
  return {run, first, n, run.first_bucket + index * run.tile_buckets, buckets};
}

CGX_HD uint32_t size_of(Type type) { return type == Type::kFloat32 ? 4 : 2; }

CGX_HD uint64_t Tile::value_at(Type type) const { return (run.value + first) * size_of(type); }
CGX_HD uint64_t Tile::sum_at(Type type) const { return (run.sum + first) * size_of(type); }
CGX_HD uint64_t Tile::residual_at(Type type) const { return (run.index + first) * size_of(type); }
CGX_HD uint64_t Tile::raw_at() const { return run.codes + first * size_of(run.wire); }

/// `bytes` (2 or 4) of any alignment: raw values behind codes start at any byte.
CGX_HD uint32_t load_word(const unsigned char* from, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(from) % bytes == 0) {
    return bytes == 4 ? *reinterpret_cast<const uint32_t*>(from)
                      : *reinterpret_cast<const uint16_t*>(from);
  }
  const uint32_t low = from[0] | static_cast<uint32_t>(from[1]) << 8;
  if (bytes == 2) return low;
  return low | static_cast<uint32_t>(from[2]) << 16 | static_cast<uint32_t>(from[3]) << 24;
}
CGX_HD void store_word(unsigned char* to, uint32_t bytes, uint32_t word) {
  if (reinterpret_cast<uintptr_t>(to) % bytes == 0) {
    if (bytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
    }
    return;
  }
  to[0] = static_cast<unsigned char>(word);
  to[1] = static_cast<unsigned char>(word >> 8);
  if (bytes == 2) return;
  to[2] = static_cast<unsigned char>(word >> 16);
  to[3] = static_cast<unsigned char>(word >> 24);
}

/// The bits of a value of `type` to float32, and back with one rounding to nearest even.
CGX_HD float widen(uint32_t word, Type type) {
  if (type == Type::kFloat32) return from_bits(word);
  const uint16_t half = static_cast<uint16_t>(word);
  return type == Type::kFloat16 ? half_to_float(half) : bfloat16_to_float(half);
}
CGX_HD uint32_t narrow(float x, Type type) {
  if (type == Type::kFloat32) return as_bits(x);
  return type == Type::kFloat16 ? float_to_half(x) : float_to_bfloat16(x);
}

/// True if one of the values is NaN; also, seldom, for infinities and values beyond the root of the
/// largest. Two values take one operation, where a comparison and what joins it to the others are
/// two.
template <uint32_t n>
CGX_HD bool may_have_nan(const float (&values)[n]) {
  float sum = values[n - 1];
  for (uint32_t k = 0; k + 2 < n; k += 2) sum = rn_fma(values[k], values[k + 1], sum);
  if (n % 2 == 0) sum = rn_add(values[n - 2], sum);
  return sum != sum;
}

/// The bits that are written: a NaN as the one of its type.
CGX_HD uint32_t written(float x, Type type) {
  return type == Type::kFloat32 ? as_bits(one_nan(x)) : narrow(x, type);
}

struct alignas(16) Vector {
  uint32_t words[4];
};

CGX_HD bool aligned(const void* p, uint32_t bytes = sizeof(Vector)) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

template <typename Word>
CGX_HD void copy_words(unsigned char* to, const unsigned char* from, uint32_t bytes, uint32_t t) {
  const uint32_t words = bytes / sizeof(Word);
  CGX_LOOP for (uint32_t i = t; i < words; i += kThreads) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
  CGX_LOOP for (uint32_t i = words * static_cast<uint32_t>(sizeof(Word)) + t; i < bytes;
                i += kThreads) {
    to[i] = from[i];
  }
}

/// Copies bytes, 16 at a time where both ends allow it, else 8, else one.
CGX_HD void copy_bytes(unsigned char* to, const unsigned char* from, uint32_t bytes, uint32_t t) {
  if (aligned(to) && aligned(from)) return copy_words<Vector>(to, from, bytes, t);
  if (aligned(to, 8) && aligned(from, 8)) return copy_words<uint64_t>(to, from, bytes, t);
  for (uint32_t i = t; i < bytes; i += kThreads) to[i] = from[i];
}

/// The same for values of 2 or 4 bytes each: words of two bytes or four where both ends allow them.
CGX_HD void copy_values(unsigned char* to, const unsigned char* from, uint32_t bytes, uint32_t t) {
  if (aligned(to) && aligned(from)) return copy_words<Vector>(to, from, bytes, t);
  if (aligned(to, 4) && aligned(from, 4)) return copy_words<uint32_t>(to, from, bytes, t);
  if (aligned(to, 2) && aligned(from, 2)) return copy_words<uint16_t>(to, from, bytes, t);
  for (uint32_t i = t; i < bytes; i += kThreads) to[i] = from[i];
}

/// Values from `from` on that come before the first one at a multiple of 16 bytes; all n where none
/// does, since values do not lie at multiples of their size.
CGX_HD uint32_t head_of(const unsigned char* from, uint32_t bytes, uint32_t n) {
  if (!aligned(from, bytes)) return n;
  const uint32_t past = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % sizeof(Vector));
  const uint32_t head = past == 0 ? 0 : (sizeof(Vector) - past) / bytes;
  return head < n ? head : n;
}

/// The values in 16 bytes, at first + [0 .. 4) or [0 .. 8), or added to them.
CGX_HD void put_vector(Vector vector, Type type, bool add, Values& values, uint32_t first) {
  auto put = [&](uint32_t i, float x) {
    float& y = values[first + i];
    y = add ? rn_add(y, x) : x;
  };
  if (type == Type::kFloat32) {
    for (uint32_t i = 0; i < 4; ++i) put(i, from_bits(vector.words[i]));
    return;
  }
  for (uint32_t i = 0; i < 4; ++i) {
    put(2 * i, widen(vector.words[i] & 0xffffu, type));
    put(2 * i + 1, widen(vector.words[i] >> 16, type));
  }
}
CGX_HD Vector get_vector(const Values& values, uint32_t first, Type type) {
  Vector vector;
  if (type == Type::kFloat32) {
    float x[4];
    for (uint32_t i = 0; i < 4; ++i) x[i] = values[first + i];
    if (may_have_nan(x)) {
      for (uint32_t i = 0; i < 4; ++i) x[i] = one_nan(x[i]);
    }
    for (uint32_t i = 0; i < 4; ++i) vector.words[i] = as_bits(x[i]);
    return vector;
  }
  for (uint32_t i = 0; i < 4; ++i) {
    vector.words[i] = narrow(values[first + 2 * i], type) | narrow(values[first + 2 * i + 1], type)
                                                                << 16;
  }
  return vector;
}

/// Kernels take groups of values: behind a tile's last value come zeros up to the next group, so
/// that nothing is read that was not written. They are in no result.
CGX_HD void end_with_zeros(Shared& shared, const Tile& tile, uint32_t t) {
  if (t < (0u - tile.n) % kGroup) shared.values[tile.n + t] = 0.0f;
}

/// Values into shared.values, or added to them.
CGX_HD void load_phase(Shared& shared, const Tile& tile, const unsigned char* from, Type type,
                       bool add, uint32_t t) {
  const uint32_t bytes = size_of(type), each = sizeof(Vector) / bytes;
  const uint32_t head = head_of(from, bytes, tile.n), vectors = (tile.n - head) / each;
  for (uint32_t v = t; v < vectors; v += kThreads) {
    // By value: a reference would be read word by word.
    const Vector vector = reinterpret_cast<const Vector*>(from + head * bytes)[v];
    put_vector(vector, type, add, shared.values, head + v * each);
  }
  const auto load_one = [&](uint32_t i) {
    const float x = widen(load_word(from + i * bytes, bytes), type);
    shared.values[i] = add ? rn_add(shared.values[i], x) : x;
  };
  for (uint32_t i = t; i < head; i += kThreads) load_one(i);
  for (uint32_t i = head + vectors * each + t; i < tile.n; i += kThreads) load_one(i);
  if (!add) end_with_zeros(shared, tile, t);
}

/// The sums of two tensors' values into shared.values, or added to them. `residual` is the memory of
/// place 0, float32 or bfloat16.
CGX_HD void load_with_residual_phase(Shared& shared, const Tile& tile, const unsigned char* from,
                                     Type type, const unsigned char* residual, Type residual_type,
                                     bool add, uint32_t t) {
  const uint32_t bytes = size_of(type), residual_bytes = size_of(residual_type);
  residual += tile.residual_at(residual_type);
  for (uint32_t i = t; i < tile.n; i += kThreads) {
    const uint32_t owed = load_word(residual + i * residual_bytes, residual_bytes);
    const float x = rn_add(widen(load_word(from + i * bytes, bytes), type),
                           from_bits(residual_type == Type::kFloat32 ? owed : owed << 16));
    shared.values[i] = add ? rn_add(shared.values[i], x) : x;
  }
  if (!add) end_with_zeros(shared, tile, t);
}

/// shared.values into memory.
CGX_HD void store_phase(const Shared& shared, const Tile& tile, unsigned char* to, Type type,
                        uint32_t t) {
  const uint32_t bytes = size_of(type), each = sizeof(Vector) / bytes;
  const uint32_t head = head_of(to, bytes, tile.n), vectors = (tile.n - head) / each;
  for (uint32_t v = t; v < vectors; v += kThreads) {
    reinterpret_cast<Vector*>(to + head * bytes)[v] =
        get_vector(shared.values, head + v * each, type);
  }
  const auto store_one = [&](uint32_t i) {
    store_word(to + i * bytes, bytes, written(shared.values[i], type));
  };
  for (uint32_t i = t; i < head; i += kThreads) store_one(i);
  for (uint32_t i = head + vectors * each + t; i < tile.n; i += kThreads) store_one(i);
}

CGX_HD bool is_finite(float x) { return (as_bits(x) & 0x7f800000u) != 0x7f800000u; }

/// True if the thread's values are finite.
CGX_HD bool all_finite_phase(const Shared& shared, const Tile& tile, uint32_t t) {
  bool finite = true;
  for (uint32_t i = t; i < tile.n; i += kThreads) finite = finite && is_finite(shared.values[i]);
  return finite;
}

}  // namespace cgx::gpu
