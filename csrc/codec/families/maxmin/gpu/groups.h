// Groups of eight values that lie in one bucket or two: a thread codes one at a time, without a
// division.
#pragma once

#include "codec/families/maxmin/gpu/random_codes.h"

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

/// The bucket of the tile in which the group at i begins, and how many of the group's values are in it,
/// or more. The others are in the next bucket, for a bucket is no shorter than a group.
struct GroupPlace {
  uint32_t bucket, left;
};
CGX_HD GroupPlace place_of_group(const Tile& tile, uint32_t i) {
  const CodecRun& run = tile.run;
  const auto size = static_cast<uint32_t>(run.bucket);
  if (!run.long_buckets) {
    const uint32_t bucket = i * run.inverse >> 22;
    return {bucket, (bucket + 1) * size - i};
  }
  const uint64_t at = tile.first - tile.bucket * run.bucket + i;
  if (run.bucket > kTile) {  // a tile holds parts of two of them at most
    const uint32_t bucket = at >= run.bucket ? 1 : 0;
    const uint64_t left = (bucket + 1) * run.bucket - at;
    return {bucket, left < kGroup ? static_cast<uint32_t>(left) : kGroup};
  }
  const uint32_t bucket = static_cast<uint32_t>(at) / size;
  return {bucket, (bucket + 1) * size - static_cast<uint32_t>(at)};
}

/// What the values of a group are rounded with.
struct RoundingOfGroup {
  bool stochastic;
  bool quick;  // bits are there
  uint32_t bits[kGroup];
};

/// The codes of the group at i by the scale of a bucket.
template <uint32_t kBits>
CGX_HD void codes_by(const Shared& shared, const BucketMemory& memory, const Tile& tile,
                     RandomKey key, uint32_t i, uint32_t bucket, const RoundingOfGroup& rounding,
                     uint32_t (&codes)[kGroup]) {
  const Scale scale = memory.scales[bucket];
  if (!scale.by_reciprocal || !rounding.quick) {
    const MaxMinScale exact = maxmin_scale(memory.meta[bucket], maxmin_levels(kBits));
    for (uint32_t k = 0; k < kGroup; ++k) codes[k] = code_of(shared, tile, key, i + k, exact);
  } else if (rounding.stochastic) {
    const RandomCoding by(memory.meta[bucket], scale.step, maxmin_levels(kBits));
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
      codes[k] = by.code(shared.values[i + k], rounding.bits[k]) >> 24;
    }
  } else {
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
      codes[k] = maxmin_code_by_reciprocal(shared.values[i + k], scale.min, scale.step);
    }
  }
}

template <uint32_t kBits>
CGX_HD void quantize_groups(Shared& shared, const BucketMemory& memory, const Tile& tile,
                            RandomKey key, uint32_t t) {
  const uint32_t i = kGroup * t;
  if (i >= tile.n) return;
  RoundingOfGroup rounding{is_stochastic(tile.run), true, {}};
  if (rounding.stochastic) {
    const RandomRange random(key, tile.run.index + tile.first + i, kGroup);
    rounding.quick = random.whole;
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) rounding.bits[k] = random.from(0).of(k);
  }
  const GroupPlace place = place_of_group(tile, i);
  uint32_t codes[kGroup];
  codes_by<kBits>(shared, memory, tile, key, i, place.bucket, rounding, codes);
  if (place.left < kGroup && i + place.left < tile.n) {
    uint32_t others[kGroup];
    codes_by<kBits>(shared, memory, tile, key, i, place.bucket + 1, rounding, others);
    CGX_UNROLL for (uint32_t k = 1; k < kGroup; ++k) {
      codes[k] = k < place.left ? codes[k] : others[k];
    }
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
  const GroupPlace place = place_of_group(tile, i);
  uint32_t low = 0, high = 0;
  get_group<kBits>(shared, i, low, high);
  float values[kGroup];
  const auto by = [&](MaxMinMeta meta, uint32_t from) {
    // The branch is outside of the loop: buckets that overflow are rare.
    const auto each = [&](const auto& value) {
      CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
        const uint32_t half = k < kGroup / 2 ? low : high;
        const uint32_t code = half >> (k % (kGroup / 2) * kBits) & ((1u << kBits) - 1);
        const float x = value(code);
        values[k] = k < from ? values[k] : x;
      }
    };
    if (meta.unit < 0.0f) {
      each([&](uint32_t code) { return maxmin_value(meta, code); });
    } else {
      each([&](uint32_t code) { return maxmin_regular_value(meta, code); });
    }
  };
  by(memory.meta[place.bucket], 0);
  if (place.left < kGroup && i + place.left < tile.n) {
    by(memory.meta[place.bucket + 1], place.left);
  }
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    float& y = shared.values[i + k];
    y = add ? rn_add(y, values[k]) : values[k];  // behind the last value: never stored
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
