// The codecs at the level in force: bytes equal to the scalar level's, values inside the bound,
// nothing read or written outside of what was lent.
#include <algorithm>
#include <cmath>
#include <memory>

#include "at_level.h"
#include "check.h"
#include "codec/ops/level.h"
#include "codec/ops/random.h"
#include "data.h"
#include "maxmin_codec.h"
#include "oracle.h"

namespace cgx::native {
namespace {

// Memory of exactly `n` bytes whose address is odd by `shift`: AddressSanitizer sees any access
// beyond its end, and code that wants alignment has none.
class Exact {
 public:
  Exact(size_t n, size_t shift) : memory_(new std::byte[n + shift]), shift_(shift), bytes_(n) {}
  std::byte* data() const { return memory_.get() + shift_; }
  std::vector<std::byte> copy() const { return {data(), data() + bytes_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t shift_, bytes_;
};

struct Run {
  std::shared_ptr<const Codec> codec;
  DType dtype;
  std::vector<std::byte> tensor;
  size_t n;
  uint64_t index;
};

std::vector<std::byte> encode(const Run& run, size_t shift) {
  Exact in(run.tensor.size(), shift);
  std::copy(run.tensor.begin(), run.tensor.end(), in.data());
  Exact payload(run.codec->encoded_bytes(run.n, run.dtype), shift);
  run.codec->encode(in.data(), run.dtype, run.dtype, run.n, 0, run.n, random_key(1, 2, 3, 0),
                    run.index, payload.data());
  return payload.copy();
}

std::vector<float> decode(const Run& run, const std::vector<std::byte>& payload, size_t shift,
                          bool add) {
  Exact in(payload.size(), shift);
  std::copy(payload.begin(), payload.end(), in.data());
  auto out = std::make_unique<float[]>(run.n);
  std::fill(out.get(), out.get() + run.n, 0.5f);
  run.codec->decode(in.data(), run.dtype, run.n, 0, run.n, out.get(), add);
  return {out.get(), out.get() + run.n};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return as_bits(x) == as_bits(y); });
}

void check(const Run& run) {
  const size_t shift = run.n % 5;
  std::vector<std::byte> expected;
  std::vector<float> decoded, summed;
  {
    AtLevel scalar("scalar");
    expected = encode(run, 0);
    decoded = decode(run, expected, 0, false);
    summed = decode(run, expected, 0, true);
  }
  const std::string what = str_of(run.codec->describe(), " ", name_of(run.dtype), " n=", run.n);
  const std::vector<std::byte> payload = encode(run, shift);
  CHECK(payload == expected, what, " at level ", cpu_level(), " differs from scalar");
  CHECK(same_bits(decode(run, payload, shift, false), decoded), what);
  CHECK(same_bits(decode(run, payload, shift, true), summed), what);
  const Estimate exact(values_of(run.tensor, run.dtype));
  check_inside(decoded, encoded(exact, {{run.n, run.codec}}, run.dtype));
}

std::shared_ptr<const Codec> codec_of(int bits, int64_t bucket, Rounding rounding, bool skip) {
  return make_maxmin({bits, bucket, rounding, skip, 9});
}

std::shared_ptr<const Codec> half_codec(const char* name) { return make_codec(name); }

}  // namespace

TEST(codec_every_width_type_and_rounding) {
  uint64_t seed = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    for (DType dtype : kDTypes) {
      for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        for (int64_t bucket : {1, 7, 64, 100, 512}) {
          for (size_t n : {1, 8, 63, 64, 65, 257, 1030}) {
            ++seed;
            const auto codec = codec_of(bits, bucket, rounding, seed % 3 == 0);
            const auto x = values(n, static_cast<int>(seed % kPatterns), seed);
            check({codec, dtype, tensor_of(x, dtype), n, seed});
          }
        }
      }
    }
  }
}

// Where multiplying by a reciprocal could differ from dividing: steps of every significand, values
// whose quotient is next to the border between two codes, as rounding sets it.
TEST(codec_next_to_every_border) {
  Random random(11);
  const RandomKey key = random_key(1, 2, 3, 0);
  for (int repeat = 0; repeat < 600; ++repeat) {
    const int bits = 1 + repeat % 8;
    const uint32_t levels = (1u << bits) - 1;
    uint32_t significand = 0x800000 | static_cast<uint32_t>(random(0x800000));
    // Close to multiples of 2^16, to powers of two, all ones.
    const uint32_t off = static_cast<uint32_t>(random(21)) - 10;
    if (repeat % 3 == 1) significand = (significand & ~0xffffu) + off;
    if (repeat % 3 == 2)
      significand = (repeat % 2 ? 0xffffff : 0x800000) - random(4) * (repeat % 2);
    const int exponent = static_cast<int>(random(130)) - 65 - 23;
    const double step = std::ldexp(static_cast<double>(significand), exponent);
    const double low = repeat % 4 == 0 ? -std::ldexp(step, static_cast<int>(random(9))) : 0;
    const float first = static_cast<float>(low), last = static_cast<float>(low + step * levels);
    std::vector<float> x = {first, last};
    while (x.size() < 512) {
      const double u = random_of(key, x.size());
      const double k = static_cast<double>(random(levels));
      const double at = x.size() % 2 ? k + 0.5 : k + u;
      float value = static_cast<float>(low + at * step);
      for (uint64_t moves = random(4); moves > 0; --moves) {
        value = std::nextafter(value, random(2) == 0 ? first : last);
      }
      x.push_back(value);
    }
    for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      check({codec_of(bits, 512, rounding, false), DType::kFloat32, tensor_of(x, DType::kFloat32),
             x.size(), 0});
    }
  }
}

// Found by search: a / b is within 2^-47 of where rounding it decides between two codes.
TEST(codec_closest_quotients_to_a_border) {
  const uint32_t cases[][3] = {{13828093, 14638332, 271}, {11337731, 8835458, 399},
                               {12058626, 16392194, 87},  {16384003, 16512004, 129},
                               {11599869, 10263165, 453}, {13107198, 9113599, 89}};
  for (const auto& [step, dividend, twice] : cases) {
    const double b = std::ldexp(step, -23);
    const double wanted = b * twice / 2;
    const float a = static_cast<float>(std::ldexp(dividend, std::ilogb(wanted) - 23));
    for (int bits = 5; bits <= 8; ++bits) {
      const auto top = static_cast<float>(b * ((1 << bits) - 1));
      std::vector<float> x = {0, top, a, std::nextafter(a, 0.0f), std::nextafter(a, top)};
      if (a > top) continue;
      for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        check({codec_of(bits, 512, rounding, false), DType::kFloat32, tensor_of(x, DType::kFloat32),
               x.size(), 0});
      }
    }
  }
}

TEST(codec_every_small_size) {
  for (size_t n = 0; n <= 300; ++n) {
    for (DType dtype : kDTypes) {
      const int bits = 1 + static_cast<int>(n % 8);
      const auto x = values(n, static_cast<int>(n % kPatterns), n);
      for (int64_t bucket : {33, 128}) {
        check({codec_of(bits, bucket, Rounding::kNearest, n % 2 == 0), dtype, tensor_of(x, dtype),
               n, n});
      }
      for (const auto& codec : {raw_codec(), half_codec("bf16"), half_codec("fp16")}) {
        check({codec, dtype, tensor_of(x, dtype), n, 0});
      }
    }
  }
}

TEST(codec_parts_equal_the_whole) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (int64_t bucket : {3, 64, 100}) {
      for (bool skip : {false, true}) {
        const auto codec = codec_of(bits, bucket, Rounding::kStochastic, skip);
        const size_t n = 2111, block = codec->block();
        const auto x = values(n, 0, static_cast<uint64_t>(bits));
        const Run run{codec, DType::kFloat32, tensor_of(x, DType::kFloat32), n, 7};
        const auto whole = encode(run, 0);
        const auto expected = decode(run, whole, 0, false);
        Exact payload(whole.size(), 1);
        std::vector<float> y(n, -1);
        codec->begin(random_key(1, 2, 3, 0), 7, n, payload.data());
        for (size_t first = n / block * block;; first -= block) {
          const size_t take = std::min(block, n - first);
          Exact in(4 * take, 0);
          std::memcpy(in.data(), x.data() + first, 4 * take);
          codec->encode(in.data(), DType::kFloat32, DType::kFloat32, n, first, take,
                        random_key(1, 2, 3, 0), 7, payload.data());
          if (first == 0) break;
        }
        CHECK(payload.copy() == whole, codec->describe());
        for (size_t first = 0; first < n; first += block) {
          const size_t take = std::min(block, n - first);
          codec->decode(payload.data(), DType::kFloat32, n, first, take, y.data() + first, false);
        }
        CHECK(same_bits(y, expected), codec->describe());
      }
    }
  }
}

TEST(codec_nan_and_inf_stay_in_their_bucket) {
  const float bad[] = {std::nanf(""), INFINITY, -INFINITY};
  for (DType dtype : kDTypes) {
    for (int bits = 1; bits <= 8; ++bits) {
      for (size_t at : {0, 99, 100, 450, 511}) {
        auto x = values(512, 0, at);
        x[at] = bad[at % 3];
        const Run run{codec_of(bits, 100, Rounding::kNearest, false), dtype, tensor_of(x, dtype),
                      512, 0};
        const auto y = decode(run, encode(run, 0), 0, false);
        for (size_t i = 0; i < y.size(); ++i) {
          CHECK(std::isnan(y[i]) == (i / 100 == at / 100), "value ", i, ", bad one at ", at);
        }
      }
    }
  }
}

TEST(codec_16_bits_keep_infinities_and_make_them_of_what_is_too_large) {
  std::vector<float> x = values(1000, 0, 1);
  x[3] = INFINITY, x[40] = -INFINITY, x[500] = std::nanf(""), x[999] = 65520, x[998] = 65504;
  x[997] = -3.4028235e38f;
  for (const char* name : {"bf16", "fp16"}) {
    const auto codec = half_codec(name);
    const Run run{codec, DType::kFloat32, tensor_of(x, DType::kFloat32), x.size(), 0};
    const auto payload = encode(run, 0);
    const auto y = decode(run, payload, 0, false);
    const bool small = codec->describe() == "fp16";
    CHECK(y[3] == INFINITY && y[40] == -INFINITY && std::isnan(y[500]));
    CHECK(std::isinf(y[999]) == small && y[997] == -INFINITY);
    CHECK(small ? y[998] == 65504 : y[998] == 65536);
    for (size_t i = 0; i < 900; ++i) CHECK(i == 3 || i == 40 || i == 500 || std::isfinite(y[i]));
    CHECK(!codec->holds_finite(payload.data(), DType::kFloat32, x.size()));
    CHECK(codec->holds_finite(payload.data() + 2, DType::kFloat32, 2));
  }
}

TEST(codec_16_bits_in_parts_equal_the_whole) {
  const auto x = values(1000, 0, 2);
  for (const char* name : {"bf16", "fp16"}) {
    const auto codec = half_codec(name);
    const Run run{codec, DType::kFloat32, tensor_of(x, DType::kFloat32), x.size(), 0};
    const auto whole = encode(run, 0);
    std::vector<std::byte> payload(whole.size());
    std::vector<float> y(x.size());
    for (size_t first = 0; first < x.size(); first += 96) {
      const size_t n = std::min<size_t>(96, x.size() - first);
      codec->encode(x.data() + first, DType::kFloat32, DType::kFloat32, x.size(), first, n, {}, 0,
                    payload.data());
      codec->decode(payload.data(), DType::kFloat32, x.size(), first, n, y.data() + first, false);
    }
    CHECK(payload == whole && same_bits(y, decode(run, whole, 0, false)));
    error_of<ConfigError>(
        [&] { codec->decode(payload.data(), DType::kFloat32, 1000, 16, 16, nullptr, false); });
  }
}

TEST(codec_extremes_of_float32) {
  for (int bits = 1; bits <= 8; ++bits) {
    const std::vector<float> x = {3.4028235e38f, -3.4028235e38f, 1e38f, 0, -1, 1e-45f, -0.0f, 7};
    const Run run{codec_of(bits, 8, Rounding::kNearest, false), DType::kFloat32,
                  tensor_of(x, DType::kFloat32), x.size(), 0};
    check(run);
    for (float y : decode(run, encode(run, 0), 0, false)) CHECK(std::isfinite(y), bits);
  }
}

TEST(codec_wrong_arguments_are_named) {
  CHECK(contains(error_of<ConfigError>([] { make_maxmin({.bits = 9}); }),
                 "bits='9' is not allowed; bits takes integers from 1 to 8"));
  CHECK(
      contains(error_of<ConfigError>([] { make_maxmin({.bucket_size = 0}); }), "bucket_size='0'"));
  CHECK(contains(error_of<ConfigError>([] { make_codec("gzip"); }), "'gzip'"));
  CHECK(contains(error_of<ConfigError>([] { make_codec(config_named("fp16").set("bits", 4)); }),
                 "bits='4' is not allowed; bits takes the integer 16"));
  CHECK(contains(error_of<ConfigError>([] { set_cpu_level("mmx"); }), "'mmx'"));
  const auto codec = codec_of(4, 64, Rounding::kNearest, false);
  for (size_t first : {size_t{1}, size_t{192}, ~size_t{0}}) {
    error_of<ConfigError>(
        [&] { codec->decode(nullptr, DType::kFloat32, 128, first, 64, nullptr, false); });
  }
}

}  // namespace cgx::native
