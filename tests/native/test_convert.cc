// Conversions at the level in force against base/half.h, one value at a time.
#include <cmath>
#include <memory>

#include "check.h"
#include "codec/ops/convert.h"
#include "codec/ops/finite.h"
#include "data.h"

namespace cgx::native {

TEST(convert_every_16_bit_value) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    auto in = std::make_unique<uint16_t[]>(65536);
    for (size_t i = 0; i < 65536; ++i) in[i] = static_cast<uint16_t>(i);
    auto wide = std::make_unique<float[]>(65536);
    to_float(in.get(), dtype, 65536, wide.get());
    auto back = std::make_unique<uint16_t[]>(65536);
    from_float(wide.get(), dtype, 65536, back.get());
    for (size_t i = 0; i < 65536; ++i) {
      const float x = load_value(reinterpret_cast<const std::byte*>(&in[i]), dtype);
      if (std::isnan(x)) {
        CHECK(std::isnan(wide[i]), i);
      } else {
        CHECK(float_bits(wide[i]) == float_bits(x) && back[i] == in[i], i);
      }
      CHECK(all_finite(&in[i], dtype, 1) == std::isfinite(x), i);
    }
  }
}

TEST(convert_random_floats) {
  Random random(3);
  for (size_t n : {1, 2, 7, 15, 16, 17, 33, 1000}) {
    auto x = std::make_unique<float[]>(n);
    for (size_t i = 0; i < n; ++i) x[i] = bits_float(static_cast<uint32_t>(random()));
    for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      auto narrow = std::make_unique<uint16_t[]>(n);
      from_float(x.get(), dtype, n, narrow.get());
      auto sum = std::make_unique<float[]>(n);
      std::fill(sum.get(), sum.get() + n, 1.0f);
      add_to_float(narrow.get(), dtype, n, sum.get());
      divide(sum.get(), n, 3);
      for (size_t i = 0; i < n; ++i) {
        const uint16_t expected =
            dtype == DType::kFloat16 ? float_to_half(x[i]) : float_to_bfloat16(x[i]);
        CHECK(narrow[i] == expected, x[i]);
        const float value = load_value(reinterpret_cast<const std::byte*>(&expected), dtype);
        const float divided = (1.0f + value) / 3.0f;
        CHECK(float_bits(sum[i]) == float_bits(divided) ||
                  (std::isnan(sum[i]) && std::isnan(divided)),
              x[i]);
      }
    }
  }
}

}  // namespace cgx::native
