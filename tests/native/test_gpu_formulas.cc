// What kernels compute otherwise than the formulas say gives what the formulas give: for every
// significand, since no operation here depends on the exponent within the range that is let through.
#include <cmath>

#include "check.h"
#include "codec/families/maxmin/gpu/rows.h"
#include "codec/ops/random.h"

namespace cgx::native {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint32_t kStep = 61;  // all of them take a minute there
#else
constexpr uint32_t kStep = 1;
#endif

template <typename Work>
void each_significand(const Work& work) {
  for (uint32_t significand = 0; significand < 1u << 23; significand += kStep) {
    work(from_bits(0x3f800000u | significand));
  }
  work(from_bits(0x3fffffffu));
}

template <typename W>
void check_units(const W& width) {
  uint32_t wrong = 0;
  each_significand([&](float range) {
    for (const float scale : {1.0f, 0x1p-50f, 0x1p60f}) {
      wrong += gpu::maxmin::unit_of(width, range * scale) != range * scale / width.levels();
    }
  });
  CHECK(wrong == 0, wrong, " units of ", width.bits(), " bits are not rounded to nearest");
}

}  // namespace

TEST(gpu_formulas_divide_a_range_by_the_levels) {
  using namespace gpu::maxmin;
  check_units(Width<1>{});
  check_units(Width<2>{});
  check_units(Width<3>{});
  check_units(Width<4>{});
  check_units(Width<5>{});
  check_units(Width<6>{});
  check_units(Width<7>{});
  check_units(Width<8>{});
  for (uint32_t bits = 1; bits <= 8; ++bits) {
    const AnyWidth width{bits};
    CHECK(width.levels() == static_cast<float>((1 << bits) - 1), "levels of ", bits, " bits");
    CHECK(width.inverse() == 1.0f / width.levels(), "inverse of ", bits, " bits");
  }
}

// The proof in families/maxmin/loops-inl.h allows for 2^-46 in all, of which a product of the codes
// takes 2^-48.
TEST(gpu_formulas_need_no_doubles_for_a_reciprocal) {
  long double most = 0;
  const auto see = [&](float step, MaxMinReciprocal r) {
    const long double sum = static_cast<long double>(r.high) + static_cast<long double>(r.low);
    most = std::max(most, std::fabs(sum * static_cast<long double>(step) - 1));
  };
  each_significand([&](float step) {
    see(step, maxmin_float_reciprocal(step));
    // As on a GPU: from what is within an ulp of the quotient.
    const float quotient = 1.0f / step;
    for (const float first :
         {std::nextafter(quotient, 0.0f), quotient, std::nextafter(quotient, 2.0f)}) {
      const float high = rn_fma(rn_fma(-step, first, 1.0f), first, first);
      see(step, {high, rn_mul(rn_fma(-step, high, 1.0f), high)});
    }
  });
  CHECK(most < 0x1.02p-47L, "a reciprocal is off by ", static_cast<double>(most), ", 2^-47 is ",
        0x1p-47);
}

// Around each level, where fractions are 0 or next to it, around the middles, and anywhere; with random
// bits around the fraction and anywhere.
TEST(gpu_formulas_round_at_random_without_a_division) {
  using namespace gpu::maxmin;
  uint64_t state = 1, wrong = 0, ups = 0, seen = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    const float levels = maxmin_levels(bits);
    for (const float unit :
         {0.1f, 0.25f, 1.0f, 0x1.fffffcp-1f, 0x1.000002p0f, 7.3f, 0x1.8p-60f, 0x1.7p29f}) {
      for (const float min : {0x1p-50f, -0.75f * unit, -3.1f, 1e9f * unit}) {
        const MaxMinMeta meta{unit, min};
        if (!maxmin_stochastic_by_reciprocal(meta)) continue;
        const MaxMinScale scale = maxmin_scale(meta, levels);
        const RandomCoding by(meta, maxmin_float_reciprocal(unit), levels);
        for (int i = 0; i < 3000; ++i) {
          state = splitmix64(state);
          const auto level = static_cast<float>(state >> 40) * 0x1p-24f * levels;
          const float near[] = {level, std::floor(level), std::floor(level) + 0.5f, levels};
          float x = min + unit * near[state & 3];
          if ((state >> 2 & 3) != 0) x = std::nextafter(x, (state >> 4 & 1) != 0 ? 1e30f : min);
          if (x < min) continue;
          const float position = maxmin_position(x, scale);
          const auto fraction = static_cast<uint32_t>((position - std::floor(position)) * 0x1p24f);
          const uint32_t around = ~(fraction + static_cast<uint32_t>(state >> 5 & 3) - 2) << 8;
          for (const uint32_t random :
               {static_cast<uint32_t>(state >> 8), around, around | 0xffu}) {
            const uint32_t code = maxmin_stochastic(position, scale.top, random_unit(random));
            wrong += by.code(x, random) >> 24 != code;
            ups += static_cast<float>(code) > position;
            ++seen;
          }
        }
      }
    }
  }
  CHECK(seen > 500'000 && ups > seen / 8, seen, " cases, ", ups, " of them rounded up");
  CHECK(wrong == 0, wrong, " of ", seen, " codes differ from the formula's");
}

}  // namespace cgx::native
