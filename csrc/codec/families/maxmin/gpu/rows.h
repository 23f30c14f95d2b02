// What a lane of a warp does with a group of eight values of `maxmin`: to codes, and back. Functions are
// templates on the width: one that is known to the compiler, so that a group is coded without a
// branch, or one that is not, where compiling for all eight would take too long.
#pragma once

#include "codec/families/maxmin/gpu/random_codes.h"
#include "codec/gpu/group.h"

namespace cgx::gpu::maxmin {

/// The codes of a group. `low` holds the first four in its low bits, `high` the last four; the bits
/// above them may be anything.
struct Codes {
  uint32_t low, high;
};

/// The float 2^23 + code has the bits kOffset + code.
constexpr uint32_t kOffset = 0x4b000000u;

/// Known to the compiler.
template <uint32_t kBits>
struct Width {
  static constexpr CGX_HD uint32_t bits() { return kBits; }
  static constexpr CGX_HD uint32_t top() { return (1u << kBits) - 1; }
  static constexpr CGX_HD float levels() { return static_cast<float>(top()); }
  static constexpr CGX_HD float inverse() { return 1.0f / levels(); }
};
/// Known at run time.
struct AnyWidth {
  uint32_t width;
  CGX_HD uint32_t bits() const { return width; }
  CGX_HD uint32_t top() const { return (1u << width) - 1; }
  CGX_HD float levels() const { return maxmin_levels(static_cast<int>(width)); }
  CGX_HD float inverse() const { return rn_div(1.0f, levels()); }
};

/// kOffset + code of each of a group, to codes. The sums overflow: what kOffset adds to them is a
/// constant.
template <typename W>
CGX_HD Codes join_codes(const W& width, const Group& group) {
  const uint32_t one = 1u << width.bits(), two = one << width.bits(), three = two << width.bits();
  const auto four = [&](uint32_t k) {
    return as_bits(group[k]) + as_bits(group[k + 1]) * one + as_bits(group[k + 2]) * two +
           as_bits(group[k + 3]) * three - kOffset * (1 + one + two + three);
  };
  return {four(0), four(4)};
}

/// True if eight codes are a word, of a width that the compiler knows.
template <uint32_t kBits>
CGX_HD constexpr bool whole_in_word(const Width<kBits>&) {
  return kBits == 4;
}
CGX_HD constexpr bool whole_in_word(const AnyWidth&) { return false; }

/// Number k of a group's codes, as 2^23 + code.
template <typename W>
CGX_HD float code_at(const W& width, Codes codes, uint32_t k) {
  const uint32_t four = k < 4 ? codes.low : codes.high;
  return from_bits((four >> (k % 4 * width.bits()) & width.top()) | kOffset);
}

/// To the message, where the group's codes start: at a multiple of as many bytes as the largest power
/// of two that divides the width.
template <typename W>
CGX_HD void store_codes(const W& width, unsigned char* to, Codes codes) {
  const uint64_t all = codes.low | static_cast<uint64_t>(codes.high) << (4 * width.bits());
  switch (width.bits()) {
    case 8:
      *reinterpret_cast<uint64_t*>(to) = all;
      return;
    case 4:
      *reinterpret_cast<uint32_t*>(to) = static_cast<uint32_t>(all);
      return;
    case 2:
    case 6:
      CGX_UNROLL for (uint32_t k = 0; k < 3; ++k) {
        if (2 * k >= width.bits()) break;
        reinterpret_cast<uint16_t*>(to)[k] = static_cast<uint16_t>(all >> (16 * k));
      }
      return;
    default:
      CGX_UNROLL for (uint32_t k = 0; k < 7; ++k) {
        if (k < width.bits()) to[k] = static_cast<unsigned char>(all >> (8 * k));
      }
  }
}

/// Group `number` of codes that start at `from`, a multiple of 8 bytes.
template <typename W>
CGX_HD Codes load_codes(const W& width, const unsigned char* from, uint32_t number) {
  switch (width.bits()) {
    case 8: {
      const uint64_t all = reinterpret_cast<const uint64_t*>(from)[number];
      return {static_cast<uint32_t>(all), static_cast<uint32_t>(all >> 32)};
    }
    case 4: {
      const uint32_t all = reinterpret_cast<const uint32_t*>(from)[number];
      return {all, all >> 16};
    }
    case 2: {
      const uint32_t all = reinterpret_cast<const uint16_t*>(from)[number];
      return {all, all >> 8};
    }
    case 1: {
      const uint32_t all = from[number];
      return {all, all >> 4};
    }
    default: {
      // Four codes lie in one word or two. A word that holds none of them is not read: it may lie
      // behind the message.
      const auto* words = reinterpret_cast<const uint32_t*>(from);
      const auto four = [&](uint32_t at) {
        const uint32_t first = words[at / 32], last = words[(at + 4 * width.bits() - 1) / 32];
        return static_cast<uint32_t>((first | static_cast<uint64_t>(last) << 32) >> (at % 32));
      };
      const uint32_t at = 8 * width.bits() * number;
      return {four(at), four(at + 4 * width.bits())};
    }
  }
}

/// range / levels rounded to nearest, as a division does, for ordinary ranges: see is_ordinary().
/// tests/native/test_gpu_formulas.cc compares it for every significand and width.
template <typename W>
CGX_HD float unit_of(const W& width, float range) {
  const float unit = rn_mul(range, width.inverse());
  return rn_fma(rn_fma(-unit, width.levels(), range), width.inverse(), unit);
}

/// Codes of a bucket: by the short way, where `quick` says that it gives what the formula does.
struct Coding {
  MaxMinMeta meta;
  MaxMinReciprocal step;
  bool quick;
};

/// Extremes far from the borders of float32, whose range is neither 0 nor tiny: no operation on them
/// or their unit overflows or loses bits, and the unit lies between 2^-58 and 2^101.
CGX_HD bool is_ordinary(float min, float max) {
  return min > -0x1p60f && max < 0x1p60f && rn_sub(max, min) >= 0x1p-50f;
}

template <typename W>
CGX_HD Coding coding_of(const W& width, float min, float max, bool stochastic) {
  Coding coding;
  const bool ordinary = is_ordinary(min, max);
  coding.meta.min = rn_add(min, 0.0f);
  coding.meta.unit = unit_of(width, rn_sub(rn_add(max, 0.0f), coding.meta.min));
  if (!ordinary) coding.meta = maxmin_meta(min, max, true, width.levels());
  coding.step = maxmin_float_reciprocal(coding.meta.unit);
  coding.quick = stochastic ? maxmin_stochastic_by_reciprocal(coding.meta)
                            : ordinary && maxmin_by_reciprocal(coding.meta);
  return coding;
}

/// A group to kOffset + codes, to the nearest, of a bucket whose coding is quick.
CGX_HD void quantize(Group& group, const Coding& coding) {
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    group[k] = maxmin_rounded_by_reciprocal(group[k], coding.meta.min, coding.step);
  }
}
/// Of any bucket, with any rounding. `fifth`: from the first of the group's values to the fifth.
/// `index`: counter of the first one.
template <uint32_t fifth>
CGX_HD void quantize_any(Group& group, const Coding& coding, float levels, bool stochastic,
                         RandomKey key, uint64_t index) {
  const MaxMinScale scale = maxmin_scale(coding.meta, levels);
  turn(group, [&](uint32_t k, float x) {
    const float position = maxmin_position(x, scale);
    const uint64_t at = index + k / 4 * fifth + k % 4;
    const uint32_t code = stochastic ? maxmin_stochastic(position, scale.top, random_of(key, at))
                                     : maxmin_nearest(position, scale.top);
    return from_bits(kOffset + code);
  });
}

/// The codes of a group, to the nearest.
template <typename W>
CGX_HD Codes nearest_codes(const W& width, Group& group, const Coding& coding) {
  if (coding.quick) {
    quantize(group, coding);
  } else {
    quantize_any<4>(group, coding, width.levels(), false, {}, 0);
  }
  return join_codes(width, group);
}

/// The same with stochastic rounding. `place`: of the first value, from the start of `random`.
template <uint32_t fifth, typename W>
CGX_HD Codes random_codes(const W& width, Group& group, const Coding& coding,
                          const RandomRange& random, uint32_t place) {
  if (!coding.quick || !random.whole) {
    quantize_any<fifth>(group, coding, width.levels(), true, random.of_call, random.index + place);
    return join_codes(width, group);
  }
  const RandomCoding by(coding.meta, coding.step, width.levels());
  const RandomBits bits = random.from(place);
  const auto code = [&](uint32_t k) { return by.code(group[k], bits.of(k / 4 * fifth + k % 4)); };
  const auto four = [&](uint32_t first) {
    uint32_t codes = 0;
    CGX_UNROLL for (uint32_t k = first + 4; k-- > first;) {
      codes = moved_up(codes, code(k) << (8 - width.bits()), width.bits());
    }
    return codes;
  };
  return {four(0), four(4)};
}

/// The values of a group's codes.
template <typename W>
CGX_HD Group values_of(const W& width, Codes codes, MaxMinMeta meta) {
  Group group;
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) group[k] = code_at(width, codes, k);
  if (meta.unit >= 0.0f) {
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
      group[k] = rn_add(meta.min, rn_mul(meta.unit, rn_sub(group[k], 0x1p23f)));
    }
  } else {
    turn(group,
         [&](uint32_t, float x) { return one_nan(maxmin_value(meta, as_bits(x) & width.top())); });
  }
  return group;
}

}  // namespace cgx::gpu::maxmin
