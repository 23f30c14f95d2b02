// What a thread block does with one tile, in phases. Between two phases all threads wait for each
// other; inside a phase a thread writes nothing that another one reads. So the host runs the same
// code, thread by thread, in its tests (tests/native/test_gpu_tile.cc), and every formula is that
// of codec/maxmin.h.
#pragma once

#include "base/half.h"
#include "codec/cuda/run.h"
#include "codec/maxmin.h"
#include "codec/random.h"

namespace cgx::gpu {

/// Extremes of what a thread has seen. A NaN is remembered, not compared.
struct Extremes {
  float min, max;
  bool finite;

  CGX_HD static Extremes none() { return {from_bits(0x7f800000u), from_bits(0xff800000u), true}; }
  CGX_HD void see(float x) {
    min = x < min ? x : min;
    max = x > max ? x : max;
    finite = finite && x == x;
  }
  CGX_HD void join(const Extremes& other) {
    min = other.min < min ? other.min : min;
    max = other.max > max ? other.max : max;
    finite = finite && other.finite;
  }
};

/// The values of a tile in shared memory: a word is left out after every eighth one, so that
/// threads which work on groups of eight read from different banks.
struct Values {
  float words[kTile + kTile / 8];
  CGX_HD float& operator[](uint32_t i) { return words[i + i / 8]; }
  CGX_HD const float& operator[](uint32_t i) const { return words[i + i / 8]; }
};

/// A bucket as its groups are coded: by division, or by the reciprocal of its step.
struct Scale {
  float min;
  MaxMinReciprocal step;
  uint32_t by_reciprocal;
};

/// What lies in a block's shared memory.
struct Shared {
  Values values;
  alignas(16) unsigned char codes[kTile + 16];
  MaxMinMeta meta[kTile];
  Scale scales[kTile / kGroup];  // of runs with groups
  Extremes seen[kThreads];
};

/// The part of a run that a tile covers.
struct Tile {
  const CodecRun* run;
  uint64_t first;    // value of the run
  uint32_t n;        // values
  uint64_t bucket;   // of the first value
  uint32_t buckets;  // begun or continued here

  CGX_HD uint32_t code_bytes() const { return (n * run->bits + 7) / 8; }
  CGX_HD uint64_t codes_at() const { return run->codes + first / 8 * run->bits; }
  /// Bytes from the start of a tensor, and of the message, to the first value.
  CGX_HD uint64_t value_at(Type type) const;
  CGX_HD uint64_t sum_at(Type type) const;
  CGX_HD uint64_t raw_at() const;
};

CGX_HD Tile tile_in(const CodecRun& run, uint64_t first, uint32_t n) {
  if (run.kind == Kind::kRaw) return {&run, first, n, 0, 0};
  const uint64_t bucket = first / run.bucket;
  const uint64_t last = (first + n - 1) / run.bucket;
  return {&run, first, n, bucket, static_cast<uint32_t>(last - bucket + 1)};
}

CGX_HD Tile tile_of(const CodecRun* runs, uint32_t n_runs, uint64_t number) {
  uint32_t low = 0, high = n_runs;  // the last run whose first tile is not behind `number`
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (runs[middle].first_tile <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const CodecRun& run = runs[low];
  const uint64_t first = (number - run.first_tile) * run.tile;
  const uint64_t left = run.count - first;
  return tile_in(run, first, static_cast<uint32_t>(left < run.tile ? left : run.tile));
}

CGX_HD uint32_t size_of(Type type) { return type == Type::kFloat32 ? 4 : 2; }

CGX_HD uint64_t Tile::value_at(Type type) const { return (run->value + first) * size_of(type); }
CGX_HD uint64_t Tile::sum_at(Type type) const { return (run->sum + first) * size_of(type); }
CGX_HD uint64_t Tile::raw_at() const { return run->codes + first * size_of(run->wire); }

/// `bytes` (2 or 4) of any alignment: raw values behind codes start at any byte.
CGX_HD uint32_t load_word(const unsigned char* from, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(from) % bytes == 0) {
    return bytes == 4 ? *reinterpret_cast<const uint32_t*>(from)
                      : *reinterpret_cast<const uint16_t*>(from);
  }
  uint32_t word = 0;
  for (uint32_t k = 0; k < bytes; ++k) word |= static_cast<uint32_t>(from[k]) << (8 * k);
  return word;
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
  for (uint32_t k = 0; k < bytes; ++k) to[k] = static_cast<unsigned char>(word >> (8 * k));
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

struct alignas(16) Vector {
  uint32_t words[4];
};

CGX_HD bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(Vector) == 0; }

/// Copies bytes, 16 at a time where both ends allow it.
CGX_HD void copy_bytes(unsigned char* to, const unsigned char* from, uint32_t bytes, uint32_t t) {
  uint32_t done = 0;
  if (aligned(to) && aligned(from)) {
    const uint32_t vectors = bytes / sizeof(Vector);
    for (uint32_t i = t; i < vectors; i += kThreads) {
      reinterpret_cast<Vector*>(to)[i] = reinterpret_cast<const Vector*>(from)[i];
    }
    done = vectors * static_cast<uint32_t>(sizeof(Vector));
  }
  for (uint32_t i = done + t; i < bytes; i += kThreads) to[i] = from[i];
}

/// The values in 16 bytes, at first + [0 .. 4) or [0 .. 8), or added to them.
CGX_HD void put_vector(const Vector& vector, Type type, bool add, Values& values, uint32_t first) {
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
  for (uint32_t i = 0; i < 4; ++i) {
    vector.words[i] = type == Type::kFloat32 ? as_bits(values[first + i])
                                             : narrow(values[first + 2 * i], type) |
                                                   narrow(values[first + 2 * i + 1], type) << 16;
  }
  return vector;
}

/// Values into shared.values, or added to them.
CGX_HD void load_phase(Shared& shared, const Tile& tile, const unsigned char* from, Type type,
                       bool add, uint32_t t) {
  const uint32_t bytes = size_of(type), each = sizeof(Vector) / bytes;
  const uint32_t vectors = aligned(from) ? tile.n / each : 0;
  for (uint32_t v = t; v < vectors; v += kThreads) {
    put_vector(reinterpret_cast<const Vector*>(from)[v], type, add, shared.values, v * each);
  }
  for (uint32_t i = vectors * each + t; i < tile.n; i += kThreads) {
    const float x = widen(load_word(from + i * bytes, bytes), type);
    shared.values[i] = add ? rn_add(shared.values[i], x) : x;
  }
}

/// shared.values into memory.
CGX_HD void store_phase(const Shared& shared, const Tile& tile, unsigned char* to, Type type,
                        uint32_t t) {
  const uint32_t bytes = size_of(type), each = sizeof(Vector) / bytes;
  const uint32_t vectors = aligned(to) ? tile.n / each : 0;
  for (uint32_t v = t; v < vectors; v += kThreads) {
    reinterpret_cast<Vector*>(to)[v] = get_vector(shared.values, v * each, type);
  }
  for (uint32_t i = vectors * each + t; i < tile.n; i += kThreads) {
    store_word(to + i * bytes, bytes, narrow(shared.values[i], type));
  }
}

/// Do the thread's values stay finite on the wire of the tile's run?
CGX_HD bool all_finite_phase(const Shared& shared, const Tile& tile, uint32_t t) {
  const Type wire = tile.run->kind == Kind::kRaw ? tile.run->wire : Type::kFloat32;
  bool finite = true;
  for (uint32_t i = t; i < tile.n; i += kThreads) {
    const float x = widen(narrow(shared.values[i], wire), wire);
    finite = finite && (as_bits(x) & 0x7f800000u) != 0x7f800000u;
  }
  return finite;
}

/// Threads that share a bucket: a power of two, at most a warp.
CGX_HD uint32_t lanes_of(uint64_t bucket) {
  uint32_t lanes = 1;
  while (lanes < 32 && 8 * lanes <= bucket) lanes *= 2;
  return lanes;
}

CGX_HD void set_meta(Shared& shared, const Tile& tile, uint32_t b, MaxMinMeta meta) {
  shared.meta[b] = meta;
  const CodecRun& run = *tile.run;
  if (run.inverse == 0 || run.stochastic) return;
  const bool safe = maxmin_by_reciprocal(meta);
  shared.scales[b] = {meta.min, safe ? maxmin_reciprocal(meta.unit) : MaxMinReciprocal{0, 0}, safe};
}

/// Meta of the tile's buckets into shared.meta. `Fold(extremes, lanes)` joins those of `lanes`
/// neighbouring threads.
template <typename Fold>
CGX_HD void extremes_phase(Shared& shared, const Tile& tile, uint32_t t, const Fold& fold,
                           uint32_t lanes, uint32_t threads) {
  const uint32_t bucket = static_cast<uint32_t>(tile.run->bucket);
  const uint32_t teams = threads / lanes;
  const float levels = maxmin_levels(tile.run->bits);
  // All lanes of a warp go the same way, as folding asks for.
  for (uint32_t from = 0; from < tile.buckets; from += teams) {
    const uint32_t b = from + t / lanes;
    Extremes e = Extremes::none();
    if (b < tile.buckets) {
      const uint32_t end = (b + 1) * bucket < tile.n ? (b + 1) * bucket : tile.n;
      for (uint32_t i = b * bucket + t % lanes; i < end; i += lanes) e.see(shared.values[i]);
    }
    fold(e, lanes);
    if (b < tile.buckets && t % lanes == 0) {
      set_meta(shared, tile, b, maxmin_meta(e.min, e.max, e.finite, levels));
    }
  }
}

/// Meta between shared memory and the message.
CGX_HD void store_meta_phase(const Shared& shared, const Tile& tile, unsigned char* message,
                             uint32_t t) {
  auto* to = reinterpret_cast<MaxMinMeta*>(message + tile.run->meta) + tile.bucket;
  for (uint32_t b = t; b < tile.buckets; b += kThreads) to[b] = shared.meta[b];
}
CGX_HD void load_meta_phase(Shared& shared, const Tile& tile, const unsigned char* message,
                            uint32_t t) {
  const auto* from = reinterpret_cast<const MaxMinMeta*>(message + tile.run->meta) + tile.bucket;
  for (uint32_t b = t; b < tile.buckets; b += kThreads) set_meta(shared, tile, b, from[b]);
}

/// Walks the values of a group of eight with the bucket that each belongs to.
struct BucketOf {
  uint32_t bucket;  // of the tile
  uint64_t left;    // values of it from here on
  CGX_HD BucketOf(const Tile& tile, uint32_t i) {
    const uint64_t at = tile.first + i;
    const uint64_t number = at / tile.run->bucket;
    bucket = static_cast<uint32_t>(number - tile.bucket);
    left = (number + 1) * tile.run->bucket - at;
  }
  CGX_HD void next(const Tile& tile) {
    if (--left == 0) ++bucket, left = tile.run->bucket;
  }
};

struct Key {
  uint32_t low, high;
};

/// block_key() of codec/random.h.
CGX_HD Key key_of(Key key, uint32_t block) {
  if (block == 0) return key;
  const uint64_t mixed = splitmix64(block);
  return {key.low ^ static_cast<uint32_t>(mixed), key.high ^ static_cast<uint32_t>(mixed >> 32)};
}

/// Code of value number i of the tile, by the formula.
CGX_HD uint32_t code_of(const Shared& shared, const Tile& tile, Key key, uint32_t i,
                        MaxMinScale scale) {
  const CodecRun& run = *tile.run;
  const float position = maxmin_position(shared.values[i], scale);
  if (!run.stochastic) return maxmin_nearest(position, scale.top);
  const uint64_t index = run.index + tile.first + i;
  const Key mine = key_of(key, static_cast<uint32_t>(index >> 32));
  const float u = random_unit(random_bits(static_cast<uint32_t>(index), mine.low, mine.high));
  return maxmin_stochastic(position, scale.top, u);
}

/// The bytes of the eight codes of a group, in shared.codes; words where they lie on a border.
template <uint32_t kBits>
CGX_HD void put_group(Shared& shared, uint32_t i, uint32_t low, uint32_t high) {
  unsigned char* to = shared.codes + i / kGroup * kBits;
  if constexpr (kBits == 8) {
    reinterpret_cast<uint32_t*>(to)[0] = low;
    reinterpret_cast<uint32_t*>(to)[1] = high;
  } else if constexpr (kBits == 4) {
    *reinterpret_cast<uint32_t*>(to) = low | high << 16;
  } else if constexpr (kBits == 2) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(low | high << 8);
  } else {
    const uint64_t all = low | static_cast<uint64_t>(high) << (4 * kBits);
    for (uint32_t k = 0; k < kBits; ++k) to[k] = static_cast<unsigned char>(all >> (8 * k));
  }
}
/// Of the first four and the last four codes.
template <uint32_t kBits>
CGX_HD void get_group(const Shared& shared, uint32_t i, uint32_t& low, uint32_t& high) {
  const unsigned char* from = shared.codes + i / kGroup * kBits;
  if constexpr (kBits == 8) {
    low = reinterpret_cast<const uint32_t*>(from)[0];
    high = reinterpret_cast<const uint32_t*>(from)[1];
  } else if constexpr (kBits == 4) {
    low = *reinterpret_cast<const uint32_t*>(from);
    high = low >> 16;
  } else if constexpr (kBits == 2) {
    low = *reinterpret_cast<const uint16_t*>(from);
    high = low >> 8;
  } else {
    uint64_t all = 0;
    for (uint32_t k = 0; k < kBits; ++k) all |= static_cast<uint64_t>(from[k]) << (8 * k);
    low = static_cast<uint32_t>(all);
    high = static_cast<uint32_t>(all >> (4 * kBits));
  }
}

/// The bucket of the tile that the group at i lies in.
CGX_HD uint32_t bucket_of_group(const Tile& tile, uint32_t i) {
  const CodecRun& run = *tile.run;
  if (run.kind == Kind::kMaxMin) return i * run.inverse >> 22;
  // A wide bucket is larger than a tile, which holds two of them at most.
  return tile.first - tile.bucket * run.bucket + i >= run.bucket ? 1 : 0;
}

template <uint32_t kBits>
CGX_HD void quantize_groups(Shared& shared, const Tile& tile, Key key, uint32_t t) {
  const uint32_t i = kGroup * t;
  if (i >= tile.n) return;
  const uint32_t b = bucket_of_group(tile, i);
  uint32_t codes[kGroup];
  if (!tile.run->stochastic && shared.scales[b].by_reciprocal) {
    const Scale scale = shared.scales[b];
    for (uint32_t k = 0; k < kGroup; ++k) {
      codes[k] = maxmin_code_by_reciprocal(shared.values[i + k], scale.min, scale.step);
    }
  } else {
    const MaxMinScale scale = maxmin_scale(shared.meta[b], maxmin_levels(kBits));
    for (uint32_t k = 0; k < kGroup; ++k) codes[k] = code_of(shared, tile, key, i + k, scale);
  }
  if (i + kGroup > tile.n) {  // behind the last value come bits of 0
    for (uint32_t k = 0; k < kGroup; ++k) codes[k] = i + k < tile.n ? codes[k] : 0;
  }
  uint32_t low = 0, high = 0;
  for (uint32_t k = 0; k < kGroup / 2; ++k) {
    low |= codes[k] << (k * kBits);
    high |= codes[k + kGroup / 2] << (k * kBits);
  }
  put_group<kBits>(shared, i, low, high);
}

template <uint32_t kBits>
CGX_HD void decode_groups(Shared& shared, const Tile& tile, bool add, uint32_t t) {
  const uint32_t i = kGroup * t;
  if (i >= tile.n) return;
  const MaxMinMeta meta = shared.meta[bucket_of_group(tile, i)];
  uint32_t low = 0, high = 0;
  get_group<kBits>(shared, i, low, high);
  for (uint32_t k = 0; k < kGroup; ++k) {
    const uint32_t half = k < kGroup / 2 ? low : high;
    const uint32_t code = half >> (k % (kGroup / 2) * kBits) & ((1u << kBits) - 1);
    const float x = maxmin_value(meta, code);
    float& y = shared.values[i + k];
    y = add ? rn_add(y, x) : x;  // behind the last value: never stored
  }
}

/// Calls work.template run<bits>().
template <typename Work>
CGX_HD void with_bits(uint32_t bits, const Work& work) {
  switch (bits) {
    case 1:
      return work.template run<1>();
    case 2:
      return work.template run<2>();
    case 3:
      return work.template run<3>();
    case 4:
      return work.template run<4>();
    case 5:
      return work.template run<5>();
    case 6:
      return work.template run<6>();
    case 7:
      return work.template run<7>();
    default:
      return work.template run<8>();
  }
}

struct QuantizeGroups {
  Shared& shared;
  const Tile& tile;
  Key key;
  uint32_t t;
  template <uint32_t kBits>
  CGX_HD void run() const {
    quantize_groups<kBits>(shared, tile, key, t);
  }
};
struct DecodeGroups {
  Shared& shared;
  const Tile& tile;
  bool add;
  uint32_t t;
  template <uint32_t kBits>
  CGX_HD void run() const {
    decode_groups<kBits>(shared, tile, add, t);
  }
};

/// shared.values to codes, packed in shared.codes.
CGX_HD void quantize_phase(Shared& shared, const Tile& tile, Key key, uint32_t t) {
  const CodecRun& run = *tile.run;
  if (run.inverse != 0) return with_bits(run.bits, QuantizeGroups{shared, tile, key, t});
  const float levels = maxmin_levels(run.bits);
  for (uint32_t i = kGroup * t; i < tile.n; i += kGroup * kThreads) {
    uint64_t packed = 0;
    BucketOf at(tile, i);
    MaxMinScale scale = maxmin_scale(shared.meta[at.bucket], levels);
    uint32_t bucket = at.bucket;
    for (uint32_t k = 0; k < kGroup && i + k < tile.n; ++k, at.next(tile)) {
      if (at.bucket != bucket) scale = maxmin_scale(shared.meta[bucket = at.bucket], levels);
      packed |= static_cast<uint64_t>(code_of(shared, tile, key, i + k, scale)) << (k * run.bits);
    }
    unsigned char* to = shared.codes + i / kGroup * run.bits;
    for (uint32_t k = 0; k < run.bits; ++k) to[k] = static_cast<unsigned char>(packed >> (8 * k));
  }
}

CGX_HD void store_codes_phase(const Shared& shared, const Tile& tile, unsigned char* message,
                              uint32_t t) {
  copy_bytes(message + tile.codes_at(), shared.codes, tile.code_bytes(), t);
}
CGX_HD void load_codes_phase(Shared& shared, const Tile& tile, const unsigned char* message,
                             uint32_t t) {
  copy_bytes(shared.codes, message + tile.codes_at(), tile.code_bytes(), t);
}

/// shared.codes to shared.values, or added to them.
CGX_HD void decode_phase(Shared& shared, const Tile& tile, bool add, uint32_t t) {
  const uint32_t bits = tile.run->bits;
  if (tile.run->inverse != 0) return with_bits(bits, DecodeGroups{shared, tile, add, t});
  const uint32_t mask = (1u << bits) - 1;
  for (uint32_t i = 8 * t; i < tile.n; i += 8 * kThreads) {
    const unsigned char* from = shared.codes + i / 8 * bits;
    uint64_t packed = 0;
    for (uint32_t k = 0; k < bits; ++k) packed |= static_cast<uint64_t>(from[k]) << (8 * k);
    BucketOf at(tile, i);
    for (uint32_t k = 0; k < 8 && i + k < tile.n; ++k, at.next(tile)) {
      const uint32_t code = static_cast<uint32_t>(packed >> (k * bits)) & mask;
      const float x = maxmin_value(shared.meta[at.bucket], code);
      shared.values[i + k] = add ? rn_add(shared.values[i + k], x) : x;
    }
  }
}

}  // namespace cgx::gpu
