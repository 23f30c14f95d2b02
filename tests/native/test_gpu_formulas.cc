// What kernels compute otherwise than the formulas say gives what the formulas give: for every
// significand, since no operation here depends on the exponent within the range that is let through.
#include <cmath>

#include "check.h"
#include "codec/families/maxmin/gpu/rows.h"

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

}  // namespace cgx::native
