// Conversions at the level in force against base/half.h, one value at a time.
#include <cmath>
#include <iterator>
#include <memory>
#include <vector>

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

// Each NaN that is written is one: whatever it was, and also where it is new, in each lane of a vector
// and behind the last whole one.
TEST(convert_writes_one_nan) {
  const float infinity = __builtin_inff();
  const uint32_t kinds[] = {0x7fc00000, 0xffc00000, 0x7fffffff, 0x7f802000, 0xffa10001};
  for (const size_t n : {1u, 7u, 63u, 64u, 130u, 257u, 300u}) {
    for (size_t place = 0; place < n; ++place) {
      const float nan = bits_float(kinds[place % std::size(kinds)]);
      std::vector<float> x(n, 1.5f), y(n, 2.5f);
      const auto is_one = [&](const std::vector<float>& got, float others) {
        for (size_t i = 0; i < n; ++i) {
          if (float_bits(got[i]) != (i == place ? kNan : float_bits(others))) return false;
        }
        return true;
      };
      x[place] = nan;
      std::vector<float> out(n);
      to_float(x.data(), DType::kFloat32, n, out.data());
      CHECK(is_one(out, 1.5f), "to_float, n ", n, ", place ", place);
      from_float(x.data(), DType::kFloat32, n, out.data());
      CHECK(is_one(out, 1.5f), "from_float, n ", n, ", place ", place);
      add_pair(x.data(), y.data(), n, out.data());
      CHECK(is_one(out, 4.0f), "add_pair, n ", n, ", place ", place);
      out = y;
      add_to_float(x.data(), DType::kFloat32, n, out.data());
      CHECK(is_one(out, 4.0f), "add_to_float, n ", n, ", place ", place);
      divide(x.data(), n, 0.5f);
      CHECK(is_one(x, 3.0f), "divide, n ", n, ", place ", place);
      x.assign(n, 1.5f);
      x[place] = infinity;
      y[place] = -infinity;
      add_pair(x.data(), y.data(), n, out.data());
      CHECK(is_one(out, 4.0f), "sum of infinities, n ", n, ", place ", place);
      add_to_float(x.data(), DType::kFloat32, n, y.data());
      CHECK(is_one(y, 4.0f), "sum of infinities, added, n ", n, ", place ", place);
      for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
        const bool half = dtype == DType::kFloat16;
        const uint16_t one = half ? 0x3c00 : 0x3f80, wanted = half ? kHalfNan : kBFloat16Nan;
        const uint16_t low = half ? 0x7c01 : 0x7f81;
        std::vector<uint16_t> halves(n, one);
        halves[place] = static_cast<uint16_t>(low + place % 97 + (place % 2 == 0 ? 0x8000 : 0));
        std::vector<float> wide(n), sum(n, 3.0f);
        to_float(halves.data(), dtype, n, wide.data());
        CHECK(is_one(wide, 1.0f), name_of(dtype), ", to_float, n ", n, ", place ", place);
        add_to_float(halves.data(), dtype, n, sum.data());
        CHECK(is_one(sum, 4.0f), name_of(dtype), ", add_to_float, n ", n, ", place ", place);
        std::vector<float> from(n, 1.0f);
        from[place] = nan;
        std::vector<uint16_t> narrow(n);
        from_float(from.data(), dtype, n, narrow.data());
        for (size_t i = 0; i < n; ++i) {
          const uint16_t expected = i == place ? wanted : one;
          CHECK(narrow[i] == expected, name_of(dtype), ", from_float, n ", n, ", value ", i);
        }
      }
    }
  }
}

}  // namespace cgx::native
