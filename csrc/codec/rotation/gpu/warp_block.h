// A rotated block in the registers of a warp: value number 32 k + lane is [k] of the lane. So each
// lane is an accumulator of the sums over the block. Lanes exchange values for butterflies of the
// strides 1 to 16; longer strides stay within a lane. The block's length is a power of two.
#pragma once

#include "codec/gpu/group.h"
#include "codec/gpu/warp.h"
#include "codec/rotation/formulas.h"

namespace cgx::gpu::rotation {

using namespace cgx::rotation;

static_assert(kSumLanes == kLanes, "an accumulator is a lane");

/// Values of a block of 32 * kRows.
template <uint32_t kRows>
using Rows = Array<float, kRows>;

/// The longest block of warps, in rows: more would leave a multiprocessor too few warps.
constexpr uint32_t kMostRows = 32;

/// The float 2^23 + i has the bits kWhole + i.
constexpr uint32_t kWhole = 0x4b000000u;

/// The larger one of two values, as gpu::lesser() the smaller one; b if a is NaN.
CGX_HD float greater(float a, float b) {
#if defined(CGX_PTX)
  float most;
  asm("max.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
#else
  return a > b ? a : b;
#endif
}

/// |x|, in a form that a GPU's instructions take as an operand.
CGX_HD float magnitude(float x) {
#if defined(CGX_PTX)
  float size;
  asm("abs.f32 %0, %1;" : "=f"(size) : "f"(x));
  return size;
#else
  return from_bits(as_bits(x) & 0x7fffffffu);
#endif
}

/// `from`: memory of the block's first value.
template <Type type, uint32_t kRows>
CGX_HD void load_rows(const unsigned char* from, uint32_t lane, Rows<kRows>& rows) {
  CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
    rows[k] = load_value<type>(from, k * kLanes + lane);
  }
}
/// Callers see to NaNs: to the one of float32 before, to those of 16 bits behind.
template <Type type, uint32_t kRows>
CGX_HD void store_rows(unsigned char* to, uint32_t lane, const Rows<kRows>& rows) {
  CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
    store_value<type>(to, k * kLanes + lane, rows[k]);
  }
}

/// Of a type that is known at run time.
template <uint32_t kRows>
CGX_HD void load_rows(Type type, const unsigned char* from, uint32_t lane, Rows<kRows>& rows) {
  if (type == Type::kFloat32) return load_rows<Type::kFloat32>(from, lane, rows);
  if (type == Type::kFloat16) return load_rows<Type::kFloat16>(from, lane, rows);
  load_rows<Type::kBFloat16>(from, lane, rows);
}
template <uint32_t kRows>
CGX_HD void store_rows(Type type, unsigned char* to, uint32_t lane, const Rows<kRows>& rows) {
  if (type == Type::kFloat32) return store_rows<Type::kFloat32>(to, lane, rows);
  if (type == Type::kFloat16) return store_rows<Type::kFloat16>(to, lane, rows);
  store_rows<Type::kBFloat16>(to, lane, rows);
}
template <uint32_t kRows>
CGX_HD void store_nans(Type type, unsigned char* to, uint32_t lane, const Rows<kRows>& rows) {
  if (type == Type::kFloat32) return;
  unsigned char* first = to + lane * size_of(type);
  if (type == Type::kFloat16) return gpu::store_nans<Type::kFloat16>(first, kLanes, rows);
  gpu::store_nans<Type::kBFloat16>(first, kLanes, rows);
}

/// A block that is not finite.
template <uint32_t kRows>
CGX_HD void fill_with_nan(Type type, unsigned char* to, uint32_t lane) {
  const uint32_t nan = written(from_bits(kNan), type), bytes = size_of(type);
  CGX_LOOP for (uint32_t k = 0; k < kRows; ++k) {
    store_word(to + (k * kLanes + lane) * bytes, bytes, nan);
  }
}

/// The sum of the lanes' values, in each lane: what fold_sums() gives, whose sums are these with
/// their operands in either order.
template <typename Warp>
CGX_HD float folded(Warp& warp, typename Warp::template Own<float>& sum) {
  CGX_UNROLL for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
    const auto others = warp.exchange(sum, step);
    warp.each([&](uint32_t lane) { sum(lane) = rn_add(sum(lane), others(lane)); });
  }
  return sum(0);
}

/// For each lane the signs of its values: bit k of row k. `state`: of the block's first value.
///
/// Lane l makes word l of the block's signs, whose bits are a row's; then the 32 words are
/// transposed, in squares of 16, 8, 4, 2 and 1 bits.
template <typename Warp>
CGX_HD typename Warp::template Own<uint32_t> signs_of(Warp& warp, uint64_t state) {
  typename Warp::template Own<uint32_t> signs;
  warp.each([&](uint32_t lane) {
    const uint64_t word = sign_word(state + lane / 2 * (64 * kSignStep));
    signs(lane) = static_cast<uint32_t>(lane % 2 == 0 ? word : word >> 32);
  });
  uint32_t low = 0x0000ffffu;  // bits whose number has no bit `step`
  CGX_UNROLL for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
    const auto others = warp.exchange(signs, step);
    warp.each([&](uint32_t lane) {
      const bool upper = (lane & step) != 0;
      const uint32_t kept = upper ? ~low : low, turn = upper ? kLanes - step : step;
      const uint32_t other = others(lane) << turn | others(lane) >> (kLanes - turn);
      signs(lane) = (signs(lane) & kept) | (other & ~kept);
    });
    low ^= low << (step / 2);
  }
  return signs;
}

/// `value`, negated where bit k is set.
CGX_HD float with_sign_of(float value, uint32_t signs, uint32_t k) {
  return from_bits(as_bits(value) ^ (signs << (kLanes - 1 - k) & 0x80000000u));
}

/// Butterflies between lanes: of a pair a, b the lower lane gets a + b, the upper one a - b. A
/// product by 1 or -1 is exact, so the fused operation rounds as a sum does.
template <uint32_t kRows, typename Warp>
CGX_HD void stage_of_lanes(Warp& warp, typename Warp::template Own<Rows<kRows>>& z, uint32_t step) {
  const auto others = warp.exchange(z, step);
  warp.each([&](uint32_t lane) {
    const float sign = (lane & step) != 0 ? -1.0f : 1.0f;
    CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
      z(lane)[k] = rn_fma(z(lane)[k], sign, others(lane)[k]);
    }
  });
}
/// Between rows, `step` apart.
template <uint32_t kRows>
CGX_HD void stage_of_rows(Rows<kRows>& z, uint32_t step) {
  CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
    if ((k & step) != 0) continue;
    const float a = z[k], b = z[k + step];
    z[k] = rn_add(a, b);
    z[k + step] = rn_sub(a, b);
  }
}

/// All stages, and the transposed ones. In place these are the same butterflies, in rising order of
/// their strides and in falling order.
template <uint32_t kRows, typename Warp>
CGX_HD void rotate(Warp& warp, typename Warp::template Own<Rows<kRows>>& z) {
  CGX_UNROLL for (uint32_t step = 1; step < kLanes; step *= 2) stage_of_lanes<kRows>(warp, z, step);
  warp.each([&](uint32_t lane) {
    CGX_UNROLL for (uint32_t step = 1; step < kRows; step *= 2) stage_of_rows(z(lane), step);
  });
}
template <uint32_t kRows, typename Warp>
CGX_HD void rotate_back(Warp& warp, typename Warp::template Own<Rows<kRows>>& z) {
  warp.each([&](uint32_t lane) {
    CGX_UNROLL for (uint32_t step = kRows / 2; step > 0; step /= 2) stage_of_rows(z(lane), step);
  });
  CGX_UNROLL for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
    stage_of_lanes<kRows>(warp, z, step);
  }
}

/// What the scale of a block is made of. inverse = 0: the block is zeros (root 0), or has a value
/// that is not finite.
struct Measures {
  Norm norm;
  float up;
};

/// x to u, the coefficients that are quantized.
template <uint32_t kRows, typename Warp>
CGX_HD Measures to_coefficients(Warp& warp, typename Warp::template Own<Rows<kRows>>& x,
                                uint64_t state) {
  typename Warp::template Own<float> most, energy;
  warp.each([&](uint32_t lane) {
    most(lane) = 0.0f;
    CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
      most(lane) = nan_max(most(lane), magnitude(x(lane)[k]));
    }
  });
  CGX_UNROLL for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
    const auto others = warp.exchange(most, step);
    warp.each([&](uint32_t lane) { most(lane) = nan_max(most(lane), others(lane)); });
  }
  const float largest = most(0);
  const Prescale by = prescale(largest);
  const auto signs = signs_of(warp, state);
  warp.each([&](uint32_t lane) {
    float sum = 0.0f;
    CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
      const float v = rn_mul(x(lane)[k], by.down);
      sum = rn_add(sum, rn_mul(v, v));
      x(lane)[k] = with_sign_of(v, signs(lane), k);
    }
    energy(lane) = sum;
  });
  const float sum = folded(warp, energy);
  Measures measures{{largest, 0.0f}, by.up};
  if (largest != 0.0f && as_bits(largest) < 0x7f800000u) {
    measures.norm = norm_of(sum, kRows * kLanes);
  }
  rotate<kRows>(warp, x);
  warp.each([&](uint32_t lane) {
    CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
      x(lane)[k] = rn_mul(x(lane)[k], measures.norm.inverse);
    }
  });
  return measures;
}

/// S; product and square: the lanes' parts of sum u c and sum c c.
template <uint32_t kRows, typename Warp>
CGX_HD float block_scale(Warp& warp, const Measures& measures, Scale scale,
                         typename Warp::template Own<float>& product,
                         typename Warp::template Own<float>& square) {
  const float products = folded(warp, product), squares = folded(warp, square);
  if (measures.norm.inverse == 0.0f) {
    return measures.norm.root == 0.0f ? 0.0f : from_bits(kNan);
  }
  return scale_of(scale, products, squares, kRows * kLanes, measures.norm.root, measures.up);
}

/// 2^(-k/2) c to x^: some NaNs where the scale is one, see fill_with_nan().
template <uint32_t kRows, typename Warp>
CGX_HD void to_values(Warp& warp, typename Warp::template Own<Rows<kRows>>& w, float scale,
                      uint64_t state) {
  const auto signs = signs_of(warp, state);
  rotate_back<kRows>(warp, w);
  warp.each([&](uint32_t lane) {
    Rows<kRows>& rows = w(lane);
    if (scale == 0.0f) {
      CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) rows[k] = 0.0f;
      return;
    }
    CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) rows[k] = rn_mul(rows[k], scale);
    if (may_overflow(scale)) {
      CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
        const float x = rows[k];
        rows[k] = x > kLargestFloat ? kLargestFloat : x < -kLargestFloat ? -kLargestFloat : x;
      }
    }
    CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
      rows[k] = with_sign_of(rows[k], signs(lane), k);
    }
  });
}

}  // namespace cgx::gpu::rotation
