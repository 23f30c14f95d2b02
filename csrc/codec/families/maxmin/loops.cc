// The loops of `maxmin`: the oracle, one value at a time, through the formulas, which runs on every CPU;
// and those of each SIMD level.
#include "codec/families/maxmin/loops.h"

#include "codec/families/maxmin/formulas.h"
#include "codec/ops/scalar-inl.h"
#include "codec/ops/zeros.h"

namespace cgx::maxmin {
namespace scalar {
namespace {

using namespace cgx::cpu::scalar;

template <DType dtype>
void encode_as(const Part& part, const std::byte* x, Rounding rounding, RandomKey key,
               uint64_t index, std::byte* meta_out, std::byte* codes) {
  const float levels = maxmin_levels(part.bits);
  BitWriter writer(codes, part.bits);
  for (size_t start = 0; start < part.n; start += part.bucket_size) {
    const size_t n = part.bucket_size < part.n - start ? part.bucket_size : part.n - start;
    const std::byte* bucket = x + start * size_of(dtype);
    const Extremes e = extremes<dtype>(bucket, n);
    bool zero = false;
    for (size_t i = 0; i < n && part.exact_zeros; ++i) zero |= load<dtype>(bucket, i) == 0.0f;
    const MaxMinMeta meta = zero ? maxmin_meta_with_zero(e.min, e.max, e.finite, levels)
                                 : maxmin_meta(e.min, e.max, e.finite, levels);
    std::memcpy(meta_out, &meta, sizeof meta);
    meta_out += sizeof meta;
    const MaxMinScale scale = maxmin_scale(meta, levels);
    for (size_t i = 0; i < n; ++i) {
      const float position = maxmin_position(load<dtype>(bucket, i), scale);
      writer.put(rounding == Rounding::kNearest
                     ? maxmin_nearest(position, scale.top)
                     : maxmin_stochastic(position, scale.top, random_of(key, index + start + i)));
    }
  }
}

void encode(const Part& part, const std::byte* x, DType dtype, Rounding rounding, RandomKey key,
            uint64_t index, std::byte* meta, std::byte* codes) {
  with_dtype(dtype,
             [&]<DType type>() { encode_as<type>(part, x, rounding, key, index, meta, codes); });
}

void decode(const Part& part, const std::byte* meta_in, const std::byte* codes, float* y,
            bool add) {
  BitReader reader(codes, part.bits);
  for (size_t start = 0; start < part.n; start += part.bucket_size) {
    const size_t n = part.bucket_size < part.n - start ? part.bucket_size : part.n - start;
    MaxMinMeta meta;
    std::memcpy(&meta, meta_in, sizeof meta);
    meta_in += sizeof meta;
    for (size_t i = 0; i < n; ++i) {
      const float value = maxmin_value(meta, reader.get());
      y[start + i] = one_nan(add ? y[start + i] + value : value);
    }
  }
}

constexpr Loops kLoops{encode, decode};

}  // namespace
}  // namespace scalar
}  // namespace cgx::maxmin

#define CGX_LEVEL_FILE "codec/families/maxmin/loops-inl.h"
#include "codec/ops/foreach_level-inl.h"

namespace cgx::maxmin {

const cpu::ByLevel<Loops> kLoops = CGX_BY_LEVEL(kLoops);

}  // namespace cgx::maxmin
