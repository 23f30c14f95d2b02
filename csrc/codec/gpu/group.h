// Eight neighbouring values in the registers of a lane, and their way from and to memory.
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

/// From memory at a multiple of 16 bytes.
template <Type type>
CGX_HD Group load_group(const unsigned char* from) {
  const Vector first = *reinterpret_cast<const Vector*>(from);
  Group group;
  if constexpr (type == Type::kFloat32) {
    const Vector second = *reinterpret_cast<const Vector*>(from + sizeof(Vector));
    CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) {
      group[k] = from_bits(first.words[k]);
      group[k + 4] = from_bits(second.words[k]);
    }
  } else {
    CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) {
      group[2 * k] = widen_half<type>(first.words[k], false);
      group[2 * k + 1] = widen_half<type>(first.words[k], true);
    }
  }
  return group;
}
/// Callers see to NaNs: to the one of float32 before, to those of 16 bits behind (store_nans()).
template <Type type>
CGX_HD void store_group(unsigned char* to, const Group& group) {
  if constexpr (type == Type::kFloat32) {
    CGX_UNROLL for (uint32_t half = 0; half < 2; ++half) {
      Vector vector;
      CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) vector.words[k] = as_bits(group[4 * half + k]);
      *reinterpret_cast<Vector*>(to + half * sizeof(Vector)) = vector;
    }
  } else {
    Vector vector;
    CGX_UNROLL for (uint32_t k = 0; k < 4; ++k) {
      vector.words[k] = narrow_pair<type>(group[2 * k], group[2 * k + 1]);
    }
    *reinterpret_cast<Vector*>(to) = vector;
  }
}

/// The same for memory at a multiple of a value's size.
template <Type type>
CGX_HD Group load_each(const unsigned char* from) {
  Group group;
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) group[k] = load_value<type>(from, k);
  return group;
}
template <Type type>
CGX_HD void store_each(unsigned char* to, const Group& group) {
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) store_value<type>(to, k, group[k]);
}

}  // namespace cgx::gpu
