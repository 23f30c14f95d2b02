// The loops of blocks on the wire, which the compiler makes vectors of. A file of ops/foreach_level-inl.h,
// for the level `scalar`, too.

namespace cgx::blocks {
namespace CGX_LEVEL {
namespace {

constexpr size_t kMostBlocks = kChunk / kLeastSize;

// Scales are computed side by side, so that the way from one block's values to its scale hides.
struct Scales {
  int32_t most[kMostBlocks];  // the greatest magnitude, as bits
  float scale[kMostBlocks], inverse[kMostBlocks];
  uint8_t byte[kMostBlocks];
};

static inline CGX_INLINE int32_t greatest(const float* x, size_t n) {
  int32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto u = static_cast<int32_t>(as_bits(x[i]) & 0x7fffffffu);
    most = u > most ? u : most;
  }
  return most;
}

static inline CGX_INLINE void find_powers(const formats::ScaleRule& given, size_t blocks,
                                          Scales& scales) {
  const formats::ScaleRule rule = given;
  for (size_t b = 0; b < blocks; ++b) {
    const PowerScale scale = power_scale_of(rule, static_cast<uint32_t>(scales.most[b]));
    scales.byte[b] = static_cast<uint8_t>(scale.byte);
    scales.inverse[b] = scale.inverse;
  }
}

static inline CGX_INLINE void find_divisors(const formats::ScaleRule& rule, size_t blocks,
                                            Scales& scales) {
  for (size_t b = 0; b < blocks; ++b) {
    scales.scale[b] = wide_scale_of(rule, static_cast<uint32_t>(scales.most[b]));
  }
}

static inline CGX_INLINE size_t end_of(size_t start, size_t size, size_t n) {
  return n - start < size ? n : start + size;
}

template <size_t known>
static inline CGX_INLINE void divide_by(const WireShape& shape, float* x, size_t n,
                                        std::byte* out) {
  constexpr size_t size = known;
  Scales scales;
  const size_t blocks = (n + size - 1) / size;
  for (size_t b = 0; b < blocks; ++b) {
    const size_t start = b * size;
    scales.most[b] = n - start < size ? greatest(x + start, n - start) : greatest(x + start, size);
  }
  if (shape.wide) {
    find_divisors(shape.scale_rule, blocks, scales);
    __builtin_memcpy(out, scales.scale, blocks * sizeof(float));
    for (size_t b = 0; b < blocks; ++b) {
      const float scale = scales.scale[b];
      for (size_t i = b * size; i < end_of(b * size, size, n); ++i) x[i] = x[i] / scale;
    }
    return;
  }
  find_powers(shape.scale_rule, blocks, scales);
  __builtin_memcpy(out, scales.byte, blocks);
  for (size_t b = 0; b < blocks; ++b) {
    const float inverse = scales.inverse[b];
    for (size_t i = b * size; i < end_of(b * size, size, n); ++i) x[i] = x[i] * inverse;
  }
}

static void divide(const WireShape& shape, float* x, size_t n, std::byte* scales) {
  shape.size == 32 ? divide_by<32>(shape, x, n, scales) : divide_by<128>(shape, x, n, scales);
}

template <bool add>
static void multiply(const WireShape& shape, const float* x, size_t n, const std::byte* scales,
                     float* y) {
  const size_t size = shape.size;
  for (size_t start = 0; start < n; start += size) {
    float scale;
    if (shape.wide) {
      __builtin_memcpy(&scale, scales, sizeof scale);
      scales += sizeof scale;
    } else {
      scale = scale_of_byte(static_cast<uint32_t>(*scales++));
    }
    const size_t end = end_of(start, size, n);
    CGX_INDEPENDENT for (size_t i = start; i < end; ++i) {
      const uint32_t value = as_bits(add ? y[i] + x[i] * scale : x[i] * scale);
      const uint32_t nan = formats::where_less(0x7f800000u, value & 0x7fffffffu);
      y[i] = from_bits(formats::select(nan, kNan, value));
    }
  }
}

constexpr WireLoops kLoops{divide, {multiply<false>, multiply<true>}};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::blocks
