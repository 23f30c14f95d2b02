// Eight values in the registers of a lane, and their way from and to memory.
#pragma once

#include "codec/gpu/array.h"

// Instructions of NVIDIA's GPUs, from sm_80 on, that CUDA has no portable function for.
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 800
#define CGX_PTX
#endif
#endif

namespace cgx::gpu {

using Group = Array<float, kGroup>;

/// The smaller and the larger one; NaN if one of them is.
CGX_HD float nan_min(float a, float b) {
#if defined(CGX_PTX)
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
#else
  return a != a ? a : a < b ? a : b;
#endif
}
CGX_HD float nan_max(float a, float b) {
#if defined(CGX_PTX)
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
#else
  return a != a ? a : a > b ? a : b;
#endif
}

/// The smaller one; b if a is NaN.
CGX_HD float lesser(float a, float b) {
#if defined(CGX_PTX)
  float least;
  asm("min.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
#else
  return a < b ? a : b;
#endif
}

/// `word`, moved up by `n` bits, 1 to 31, of which the upper ones of `from` come in.
CGX_HD uint32_t moved_up(uint32_t word, uint32_t from, uint32_t n) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_l(from, word, n);
#else
  return word << n | from >> (32 - n);
#endif
}

/// Two halves of a word: the upper one of `own` above the upper one of `other`, or the lower one of `own`
/// below the lower one of `other`.
CGX_HD uint32_t with_half_of(uint32_t own, uint32_t other, bool upper) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(own, other, upper ? 0x3276u : 0x5410u);
#else
  return upper ? (own & 0xffff0000u) | other >> 16 : (own & 0xffffu) | other << 16;
#endif
}

/// A value of 16 bits from the low, or the high, half of a word.
template <Type type>
CGX_HD float widen_half(uint32_t word, bool high) {
  if constexpr (type == Type::kBFloat16) {
    return from_bits(high ? word & 0xffff0000u : word << 16);
  } else {
    const auto half = static_cast<uint16_t>(high ? word >> 16 : word);
#if defined(CGX_PTX)
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
#else
    return half_to_float(half);
#endif
  }
}

/// Two values in a word, each rounded once to nearest even. A NaN becomes some NaN on a GPU: see
/// store_nans().
template <Type type>
CGX_HD uint32_t narrow_pair(float low, float high) {
#if defined(CGX_PTX)
  uint32_t word;
  if constexpr (type == Type::kBFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return narrow(low, type) | narrow(high, type) << 16;
#endif
}

/// The NaNs among values of 16 bits that have just been written, `step` values apart: narrow_pair()
/// makes others than the one of their type.
template <Type type, uint32_t n>
CGX_HD void store_nans(unsigned char* to, uint32_t step, const Array<float, n>& values) {
#if defined(CGX_PTX)
  if constexpr (type != Type::kFloat32) {
    if (!may_have_nan(values.of)) return;
    CGX_UNROLL for (uint32_t k = 0; k < n; ++k) {
      if (values[k] == values[k]) continue;
      reinterpret_cast<uint16_t*>(to)[k * step] = type == Type::kFloat16 ? kHalfNan : kBFloat16Nan;
    }
  }
#else
  static_cast<void>(to), static_cast<void>(step), static_cast<void>(values);
#endif
}

/// Value number i of memory at a multiple of a value's size.
template <Type type>
CGX_HD float load_value(const unsigned char* from, uint32_t i) {
  if constexpr (type == Type::kFloat32) {
    return reinterpret_cast<const float*>(from)[i];
  } else {
    return widen_half<type>(reinterpret_cast<const uint16_t*>(from)[i], false);
  }
}
template <Type type>
CGX_HD void store_value(unsigned char* to, uint32_t i, float x) {
  if constexpr (type == Type::kFloat32) {
    reinterpret_cast<float*>(to)[i] = x;
  } else {
    reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(narrow_pair<type>(x, x));
  }
}

/// Of a type of 16 bits, from memory at a multiple of 16 bytes.
template <Type type>
CGX_HD Group load_group(const unsigned char* from) {
  const Vector vector = *reinterpret_cast<const Vector*>(from);
  Group group;
  CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) {
    group[2 * k] = widen_half<type>(vector.words[k], false);
    group[2 * k + 1] = widen_half<type>(vector.words[k], true);
  }
  return group;
}
/// Callers see to NaNs: to the one of float32 before, to those of 16 bits behind (store_nans()).
template <Type type>
CGX_HD void store_group(unsigned char* to, const Group& group) {
  Vector vector;
  CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) {
    vector.words[k] = narrow_pair<type>(group[2 * k], group[2 * k + 1]);
  }
  *reinterpret_cast<Vector*>(to) = vector;
}

/// Half a group, its values from `first` on: in one access, from memory at a multiple of the four
/// values' bytes.
template <Type type>
CGX_HD void load_half(const unsigned char* from, Group& group, uint32_t first) {
  if constexpr (type == Type::kFloat32) {
    const Vector vector = *reinterpret_cast<const Vector*>(from);
    CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) group[first + k] = from_bits(vector.words[k]);
  } else {
    const uint64_t words = *reinterpret_cast<const uint64_t*>(from);
    CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) {
      const auto word = static_cast<uint32_t>(k < 2 ? words : words >> 32);
      group[first + k] = widen_half<type>(word, k % 2 == 1);
    }
  }
}
template <Type type>
CGX_HD void store_half(unsigned char* to, const Group& group, uint32_t first) {
  if constexpr (type == Type::kFloat32) {
    Vector vector;
    CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) vector.words[k] = as_bits(group[first + k]);
    *reinterpret_cast<Vector*>(to) = vector;
  } else {
    const uint32_t low = narrow_pair<type>(group[first], group[first + 1]);
    const uint32_t high = narrow_pair<type>(group[first + 2], group[first + 3]);
    *reinterpret_cast<uint64_t*>(to) = low | static_cast<uint64_t>(high) << 32;
  }
}

}  // namespace cgx::gpu
