// What a lane of a warp does with a group of eight values of `maxmin`: to codes, and back. All
// functions are templates on the width, so that a group is coded without a branch.
#pragma once

#include "codec/families/maxmin/gpu/memory.h"
#include "codec/gpu/group.h"

namespace cgx::gpu::maxmin {

/// The codes of a group: the first four in the low bits of `low`, the last four in those of `high`.
/// Above them lies anything.
struct Codes {
  uint32_t low, high;
};

/// The float 2^23 + code has the bits kOffset + code.
constexpr uint32_t kOffset = 0x4b000000u;

template <uint32_t kBits>
struct Width {
  static constexpr uint32_t kTop = (1u << kBits) - 1;
  static constexpr float kLevels = static_cast<float>(kTop);

  /// kOffset + code of each of a group, to codes. The sums overflow: what kOffset adds to them is a
  /// constant.
  static CGX_HD Codes join(const Group& group) {
    return {join_four(group, 0), join_four(group, 4)};
  }

  /// Number k of a group's codes, as 2^23 + code.
  static CGX_HD float code(Codes codes, uint32_t k) {
    return from_bits(((k < 4 ? codes.low : codes.high) >> (k % 4 * kBits) & kTop) | kOffset);
  }

  /// To the message, where the group's codes start: at a multiple of as many bytes as the largest
  /// power of two that divides kBits.
  static CGX_HD void store(unsigned char* to, Codes codes) {
    if constexpr (kBits == 8) {
      *reinterpret_cast<uint64_t*>(to) = both(codes);
    } else if constexpr (kBits == 4) {
      *reinterpret_cast<uint32_t*>(to) = codes.low | codes.high << 16;
    } else if constexpr (kBits == 2 || kBits == 6) {
      const uint64_t all = both(codes);
      CGX_UNROLL for (uint32_t k = 0; k < kBits / 2; ++k) {
        reinterpret_cast<uint16_t*>(to)[k] = static_cast<uint16_t>(all >> (16 * k));
      }
    } else {
      const uint64_t all = both(codes);
      CGX_UNROLL for (uint32_t k = 0; k < kBits; ++k) {
        to[k] = static_cast<unsigned char>(all >> (8 * k));
      }
    }
  }

  /// Group `number` of codes that start at `from`, a multiple of 8 bytes.
  static CGX_HD Codes load(const unsigned char* from, uint32_t number) {
    if constexpr (kBits == 8) {
      const uint64_t all = reinterpret_cast<const uint64_t*>(from)[number];
      return {static_cast<uint32_t>(all), static_cast<uint32_t>(all >> 32)};
    } else if constexpr (kBits == 4) {
      const uint32_t all = reinterpret_cast<const uint32_t*>(from)[number];
      return {all, all >> 16};
    } else if constexpr (kBits == 2) {
      const uint32_t all = reinterpret_cast<const uint16_t*>(from)[number];
      return {all, all >> 8};
    } else if constexpr (kBits == 1) {
      const uint32_t all = from[number];
      return {all, all >> 4};
    } else {
      return {load_four(from, 8 * kBits * number), load_four(from, 8 * kBits * number + 4 * kBits)};
    }
  }

 private:
  static CGX_HD uint32_t join_four(const Group& group, uint32_t k) {
    constexpr uint32_t kOne = 1u << kBits, kTwo = kOne << kBits, kThree = kTwo << kBits;
    return as_bits(group[k]) + as_bits(group[k + 1]) * kOne + as_bits(group[k + 2]) * kTwo +
           as_bits(group[k + 3]) * kThree - kOffset * (1 + kOne + kTwo + kThree);
  }
  static CGX_HD uint64_t both(Codes codes) {
    return codes.low | static_cast<uint64_t>(codes.high) << (4 * kBits);
  }
  /// Four codes from bit `at` on, which lie in one word or two. A word that holds none of them is not
  /// read: it may lie behind the message.
  static CGX_HD uint32_t load_four(const unsigned char* from, uint32_t at) {
    const auto* words = reinterpret_cast<const uint32_t*>(from);
    const uint32_t first = words[at / 32], last = words[(at + 4 * kBits - 1) / 32];
    return static_cast<uint32_t>((first | static_cast<uint64_t>(last) << 32) >> (at % 32));
  }
};

/// range / levels rounded to nearest, as a division does, for ordinary ranges: see is_ordinary().
/// tests/native/test_gpu_formulas.cc compares it for every significand and width.
template <uint32_t kBits>
CGX_HD float unit_of(float range) {
  constexpr float kLevels = Width<kBits>::kLevels, kInverse = 1.0f / kLevels;
  const float unit = rn_mul(range, kInverse);
  return rn_fma(rn_fma(-unit, kLevels, range), kInverse, unit);
}

/// Codes of a bucket: by the short way, where `ordinary` says that it gives what the formula does.
struct Coding {
  MaxMinMeta meta;
  MaxMinReciprocal step;
  bool ordinary;
};

/// Extremes far from the borders of float32, whose range is neither 0 nor tiny: no operation on them
/// or their unit overflows or loses bits, and the unit lies between 2^-58 and 2^101.
CGX_HD bool is_ordinary(float min, float max) {
  return min > -0x1p60f && max < 0x1p60f && rn_sub(max, min) >= 0x1p-50f;
}

template <uint32_t kBits>
CGX_HD Coding coding_of(float min, float max) {
  Coding coding;
  coding.ordinary = is_ordinary(min, max);
  coding.meta.min = rn_add(min, 0.0f);
  coding.meta.unit = unit_of<kBits>(rn_sub(rn_add(max, 0.0f), coding.meta.min));
  if (!coding.ordinary) coding.meta = maxmin_meta(min, max, true, Width<kBits>::kLevels);
  coding.step = maxmin_float_reciprocal(coding.meta.unit);
  coding.ordinary = coding.ordinary && maxmin_by_reciprocal(coding.meta);
  return coding;
}

/// A group to kOffset + codes, to the nearest, of an ordinary bucket.
CGX_HD void quantize(Group& group, const Coding& coding) {
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    group[k] = maxmin_rounded_by_reciprocal(group[k], coding.meta.min, coding.step);
  }
}
/// Of any bucket, with any rounding. `index`: counter of the first value.
template <uint32_t kBits>
CGX_HD void quantize_any(Group& group, const Coding& coding, bool stochastic, RandomKey key,
                         uint64_t index) {
  const MaxMinScale scale = maxmin_scale(coding.meta, Width<kBits>::kLevels);
  const bool by_reciprocal = maxmin_stochastic_by_reciprocal(coding.meta);
  turn(group, [&](uint32_t k, float x) {
    // What the reciprocal gives is right for either rounding: it is the quotient, rounded.
    const float position = by_reciprocal
                               ? maxmin_position_by_reciprocal(x, coding.meta, coding.step)
                               : maxmin_position(x, scale);
    const uint32_t code = stochastic
                              ? maxmin_stochastic(position, scale.top, random_of(key, index + k))
                              : maxmin_nearest(position, scale.top);
    return from_bits(kOffset + code);
  });
}

/// The values of a group's codes.
template <uint32_t kBits>
CGX_HD Group values_of(Codes codes, MaxMinMeta meta) {
  Group group;
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) group[k] = Width<kBits>::code(codes, k);
  if (meta.unit >= 0.0f) {
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
      group[k] = rn_add(meta.min, rn_mul(meta.unit, rn_sub(group[k], 0x1p23f)));
    }
  } else {
    turn(group, [&](uint32_t, float x) {
      return maxmin_value(meta, as_bits(x) & Width<kBits>::kTop);
    });
  }
  return group;
}

}  // namespace cgx::gpu::maxmin
