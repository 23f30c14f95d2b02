// Groups of eight values that lie in one bucket: a thread codes one at a time, without a division.
#pragma once

#include "codec/families/maxmin/gpu/memory.h"

namespace cgx::gpu::maxmin {

/// Code of value number i of the tile, by the formula.
CGX_HD uint32_t code_of(const Shared& shared, const Tile& tile, RandomKey key, uint32_t i,
                        MaxMinScale scale) {
  const CodecRun& run = tile.run;
  const float position = maxmin_position(shared.values[i], scale);
  if (!is_stochastic(run)) return maxmin_nearest(position, scale.top);
  const float u = random_of(key, run.index + tile.first + i);
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
/// Reads the codes of a group: the first four into `low`, the last four into `high`.
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
  const CodecRun& run = tile.run;
  if (!run.long_buckets) return i * run.inverse >> 22;
  // A long bucket is larger than a tile, so a tile holds parts of two of them at most.
  return tile.first - tile.bucket * run.bucket + i >= run.bucket ? 1 : 0;
}

template <uint32_t kBits>
CGX_HD void quantize_groups(Shared& shared, const BucketMemory& memory, const Tile& tile,
                            RandomKey key, uint32_t t) {
  const uint32_t i = kGroup * t;
  if (i >= tile.n) return;
  const uint32_t b = bucket_of_group(tile, i);
  uint32_t codes[kGroup];
  if (!is_stochastic(tile.run) && memory.scales[b].by_reciprocal) {
    const Scale scale = memory.scales[b];
    for (uint32_t k = 0; k < kGroup; ++k) {
      codes[k] = maxmin_code_by_reciprocal(shared.values[i + k], scale.min, scale.step);
    }
  } else {
    const MaxMinScale scale = maxmin_scale(memory.meta[b], maxmin_levels(kBits));
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
CGX_HD void decode_groups(Shared& shared, const BucketMemory& memory, const Tile& tile, bool add,
                          uint32_t t) {
  const uint32_t i = kGroup * t;
  if (i >= tile.n) return;
  const MaxMinMeta meta = memory.meta[bucket_of_group(tile, i)];
  uint32_t low = 0, high = 0;
  get_group<kBits>(shared, i, low, high);
  // The branch is outside of the loop: buckets that overflow are rare.
  const auto each = [&](const auto& value) {
    for (uint32_t k = 0; k < kGroup; ++k) {
      const uint32_t half = k < kGroup / 2 ? low : high;
      const uint32_t code = half >> (k % (kGroup / 2) * kBits) & ((1u << kBits) - 1);
      const float x = value(code);
      float& y = shared.values[i + k];
      y = add ? rn_add(y, x) : x;  // behind the last value: never stored
    }
  };
  if (meta.unit < 0.0f) {
    each([&](uint32_t code) { return maxmin_value(meta, code); });
  } else {
    each([&](uint32_t code) { return maxmin_regular_value(meta, code); });
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
  const BucketMemory& memory;
  const Tile& tile;
  RandomKey key;
  uint32_t t;
  template <uint32_t kBits>
  CGX_HD void run() const {
    quantize_groups<kBits>(shared, memory, tile, key, t);
  }
};
struct DecodeGroups {
  Shared& shared;
  const BucketMemory& memory;
  const Tile& tile;
  bool add;
  uint32_t t;
  template <uint32_t kBits>
  CGX_HD void run() const {
    decode_groups<kBits>(shared, memory, tile, add, t);
  }
};

}  // namespace cgx::gpu::maxmin
