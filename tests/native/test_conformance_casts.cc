// What every cast has to keep, over its parameters, types, sizes and values. A cast is here because it is
// in the list, and so is a named format.
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "bounded_blocks.h"
#include "check.h"
#include "codec/cast.h"
#include "codec/formats/presets.h"
#include "data.h"
#include "declarations.h"

namespace cgx::native {
namespace {

const RandomKey kCastKey = random_key(3, 5, 1, 0);
constexpr uint64_t kCastIndex = 0xfffffff0u;  // the counter's low word overflows soon

bool is_allowed_cast(const CastConfig& config) {
  try {
    make_cast(config);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

template <typename Body>
void for_each_cast(const Body& body) {
  for (const CastFamily* family : casts().all()) {
    for (const auto& config : sample_configs(*family, family->name.size(), is_allowed_cast)) {
      body(*family, *make_cast(config));
    }
  }
  for (const formats::Preset& preset : formats::presets()) {
    const CastConfig config = casts().parse(preset.text);
    if (config == CastConfig(config.family())) continue;  // the first of the list
    body(config.family(), *make_cast(config));
  }
}

struct Casting {
  const Cast& cast;
  DType from, to;
  std::vector<std::byte> x;
  size_t n;

  std::string name() const {
    return str_of(cast.describe(), ", ", name_of(from), " to ", name_of(to), ", n=", n, ", level ",
                  cpu_level());
  }
};

// The length of a row when n values are one run: n, or for blocks of several rows n over the greatest number
// of rows, at most 7, that divides n.
size_t columns_of(const Cast& cast, size_t n) {
  for (size_t rows = std::min<size_t>(cast.block_rows(), 7); rows > 1; --rows) {
    if (n % rows == 0) return n / rows;
  }
  return n;
}

// One run, with what the cast measures of it.
Cast::Run run_of(const Casting& c, RandomKey key = kCastKey) {
  Cast::Run run{.count = c.n,
                .columns = columns_of(c.cast, c.n),
                .total = c.n,
                .key = key,
                .index = kCastIndex};
  if (c.cast.group() != Group::kNone && c.n > 0) {
    run.measured = c.cast.measure(c.x.data(), c.from, c.n);
  }
  return run;
}

std::vector<std::byte> whole(const Casting& c, CastStatistics* blocks, RandomKey key = kCastKey) {
  std::vector<std::byte> y(c.n * size_of(c.to));
  c.cast.roundtrip(c.x.data(), c.from, run_of(c, key), 0, c.n, y.data(), c.to, blocks);
  return y;
}

// NaN and infinities among values that casts find hard, and their borders.
std::vector<float> hard(size_t n, uint64_t seed) {
  auto x = values(n, static_cast<int>(seed % kPatterns), seed);
  Random random(seed);
  constexpr float kOdd[] = {NAN,  INFINITY, -INFINITY, 3.4028235e38f, 1e-45f, -0.0f,
                            0.5f, 1,        -1,        0.75f,         448,    6};
  for (float& value : x) {
    if (random(7) == 0) value = kOdd[random(std::size(kOdd))];
  }
  return x;
}

template <typename Body>
void for_each_casting(uint64_t seed, const Body& body) {
  for_each_cast([&](const CastFamily& family, const Cast& cast) {
    const bool defaults = cast.config() == CastConfig(family);
    std::set<size_t> sizes{0, 1, 2, 31, 32, 33, 399, 400, 1023, 1024, 1025};
    for (size_t n = 0; defaults && n <= 400; ++n) sizes.insert(n);
    sizes.insert({kStatisticsBlock - 1, kStatisticsBlock, 2 * kStatisticsBlock + 77});
    for (const size_t unit : {cast.block() - 1, cast.block() + 1, 3 * cast.block()}) {
      if (unit < 100000) sizes.insert(unit);
    }
    for (const size_t n : sizes) {
      for (const DType from : kDTypes) {
        for (const DType to : kDTypes) {
          if (!defaults && from != to && to != DType::kFloat32) continue;
          ++seed;
          body(family, Casting{cast, from, to, tensor_of(hard(n, seed), from), n});
        }
      }
    }
  });
}

}  // namespace

TEST(conformance_casts_levels_equal_scalar) {
  for_each_casting(0, [](const CastFamily&, const Casting& c) {
    std::vector<CastStatistics> here(statistics_blocks(c.n)), there(here.size());
    const auto y = whole(c, here.data());
    CHECK(whole(c, nullptr) == y, "without statistics: ", c.name());
    AtSimdLevel scalar("scalar");
    CHECK(whole(c, there.data()) == y && here == there, c.name());
  });
}

TEST(conformance_casts_in_place_equal_out_of_place) {
  for_each_casting(1, [](const CastFamily&, const Casting& c) {
    if (c.from != c.to) return;
    auto y = c.x;
    c.cast.roundtrip(y.data(), c.from, run_of(c), 0, c.n, y.data(), c.to, nullptr);
    CHECK(y == whole(c, nullptr), c.name());
    // Statistics read what a cast in place has overwritten.
    std::vector<CastStatistics> here(statistics_blocks(c.n)), there(here.size());
    y = c.x;
    c.cast.roundtrip(y.data(), c.from, run_of(c), 0, c.n, y.data(), c.to, here.data());
    CHECK(y == whole(c, there.data()) && here == there, c.name());
  });
}

TEST(conformance_casts_are_idempotent_where_they_say_so) {
  for_each_casting(2, [](const CastFamily&, const Casting& c) {
    if (!c.cast.idempotent() || c.to != DType::kFloat32) return;
    const auto y = whole(c, nullptr);
    const Casting again{c.cast, DType::kFloat32, DType::kFloat32, y, c.n};
    CHECK(whole(again, nullptr, random_key(9, 9, 9, 9)) == y, c.name());
  });
}

TEST(conformance_casts_keep_their_bounds) {
  for_each_casting(3, [](const CastFamily& family, const Casting& c) {
    if (family.bound == nullptr || c.to != DType::kFloat32) return;
    std::vector<float> x = values_of(c.x, c.from);
    for (float& value : x) value = std::isfinite(value) ? value : 0;
    const Casting finite{c.cast, DType::kFloat32, DType::kFloat32, tensor_of(x, DType::kFloat32),
                         c.n};
    const auto y = values_of(whole(finite, nullptr), DType::kFloat32);
    std::vector<double> limits(c.n, -1);
    family.bound(c.cast.config(), x.data(), c.n, limits.data());
    for (size_t i = 0; i < c.n; ++i) {
      const double error = std::fabs(static_cast<double>(y[i]) - static_cast<double>(x[i]));
      CHECK(error <= limits[i] || std::isinf(limits[i]), c.name(), ": value ", i, ", ", x[i],
            " became ", y[i], ", allowed ", limits[i]);
    }
  });
}

// Statistics against their definition, in float64.
TEST(conformance_casts_statistics_equal_the_oracle) {
  for_each_casting(4, [](const CastFamily&, const Casting& c) {
    if (c.to != DType::kFloat32) return;
    std::vector<CastStatistics> blocks(statistics_blocks(c.n));
    const auto y = values_of(whole(c, blocks.data()), DType::kFloat32);
    const auto x = values_of(c.x, c.from);
    const CastStatistics found = add_up(blocks);
    uint64_t nonfinite = 0, underflows = 0;
    double amax = 0, squares = 0, all = 0;
    for (size_t i = 0; i < c.n; ++i) {
      const double a = x[i], b = y[i];
      if (!std::isfinite(a)) {
        ++nonfinite;
        continue;
      }
      underflows += a != 0 && b == 0 ? 1 : 0;
      amax = std::max(amax, std::fabs(a));
      if (std::isfinite(b)) squares += (a - b) * (a - b);
      all += a * a;
    }
    CHECK(found.values == c.n && found.nonfinite == nonfinite && found.underflows == underflows &&
              found.amax == amax && found.saturations <= c.n - nonfinite,
          c.name());
    const auto near = [](double value, double wanted) {
      return value == wanted || std::fabs(value - wanted) <= 1e-12 * wanted;
    };
    CHECK(near(found.squared_error, squares), c.name(), ": ", found.squared_error, " for ",
          squares);
    CHECK(near(found.squared_values, all), c.name(), ": ", found.squared_values, " for ", all);
  });
}

// Parts on any threads, in any order: bits and statistics of the whole, however it is cut.
TEST(conformance_casts_parts_equal_the_whole) {
  uint64_t seed = 0;
  for_each_cast([&](const CastFamily&, const Cast& cast) {
    const size_t border = std::lcm(cast.block(), kStatisticsBlock);
    if (border > 200000 || cast.block_rows() > 1) return;
    const size_t n = 3 * border + border / 2 + 1;
    for (const DType dtype : kDTypes) {
      const Casting c{cast, dtype, dtype, tensor_of(hard(n, ++seed), dtype), n};
      std::vector<CastStatistics> expected(statistics_blocks(n)), blocks(expected.size());
      const Cast::Run run = run_of(c);
      const auto y = whole(c, expected.data());
      std::vector<std::byte> parts(y.size());
      for (const auto& [first, some] :
           {std::pair{3 * border, n - 3 * border}, std::pair{size_t{0}, border},
            std::pair{border, 2 * border}}) {
        cast.roundtrip(c.x.data() + first * size_of(dtype), dtype, run, first, some,
                       parts.data() + first * size_of(dtype), dtype, blocks.data());
      }
      CHECK(parts == y, c.name());
      CHECK(add_up(blocks) == add_up(expected), c.name());
      // Without statistics at borders of blocks that share a scale.
      std::fill(parts.begin(), parts.end(), std::byte{});
      const size_t step = 5 * cast.block();
      for (size_t first = 0; first < n; first += step) {
        cast.roundtrip(c.x.data() + first * size_of(dtype), dtype, run, first,
                       std::min(step, n - first), parts.data() + first * size_of(dtype), dtype,
                       nullptr);
        if (first > 40 * step) break;
      }
      const size_t done = std::min(41 * step, n) * size_of(dtype);
      CHECK(std::equal(y.begin(), y.begin() + static_cast<ptrdiff_t>(done), parts.begin()),
            c.name());
    }
  });
}

// Of values that float32 lacks, too.
TEST(conformance_casts_of_float64_levels_equal_scalar) {
  for_each_casting(6, [](const CastFamily&, const Casting& c) {
    if (c.from != DType::kFloat32 || c.to != DType::kFloat32) return;
    const std::vector<float> x = values_of(c.x, c.from);
    std::vector<double> wide(x.begin(), x.end());
    for (size_t i = 0; i < c.n; ++i) wide[i] *= 1 + static_cast<double>(i % 3) * 0x1p-40;
    Casting doubles{c.cast, DType::kFloat64, DType::kFloat64, {}, c.n};
    doubles.x.resize(c.n * sizeof(double));
    if (c.n > 0) std::memcpy(doubles.x.data(), wide.data(), doubles.x.size());
    std::vector<CastStatistics> here(statistics_blocks(c.n)), there(here.size());
    const auto y = whole(doubles, here.data());
    auto in_place = doubles.x;
    c.cast.roundtrip(in_place.data(), DType::kFloat64, run_of(doubles), 0, c.n, in_place.data(),
                     DType::kFloat64, nullptr);
    CHECK(in_place == y, "in place: ", doubles.name());
    AtSimdLevel scalar("scalar");
    CHECK(whole(doubles, there.data()) == y && here == there, doubles.name());
  });
}

// Numbers of float32 have one result, whichever type they come in.
TEST(conformance_casts_of_float64_equal_those_of_float32) {
  for_each_casting(5, [](const CastFamily&, const Casting& c) {
    if (!c.cast.elementwise() || c.from != DType::kFloat32 || c.to != DType::kFloat32) return;
    const std::vector<float> x = values_of(c.x, c.from);
    const std::vector<double> wide(x.begin(), x.end());
    std::vector<double> y(c.n);
    std::vector<CastStatistics> here(statistics_blocks(c.n)), there(here.size());
    c.cast.roundtrip(wide.data(), DType::kFloat64, run_of(c), 0, c.n, y.data(), DType::kFloat64,
                     here.data());
    const std::vector<float> narrow(y.begin(), y.end());
    CHECK(tensor_of(narrow, DType::kFloat32) == whole(c, there.data()), c.name());
    CHECK(here == there, c.name());
    std::vector<float> direct(c.n);
    c.cast.roundtrip(wide.data(), DType::kFloat64, run_of(c), 0, c.n, direct.data(),
                     DType::kFloat32, nullptr);
    CHECK(tensor_of(direct, DType::kFloat32) == tensor_of(narrow, DType::kFloat32), c.name());
  });
}

TEST(conformance_casts_name_what_they_do_not_take) {
  for_each_cast([](const CastFamily&, const Cast& cast) {
    float x[8] = {}, y[8] = {};
    CastStatistics one;
    const auto refusal = [&](DType from, DType to, size_t first, CastStatistics* blocks) {
      return error_of<ConfigError>(
          [&] { cast.roundtrip(x, from, {.count = 8, .columns = 8}, first, 8, y, to, blocks); });
    };
    const std::string type = refusal(DType::kInt64, DType::kFloat32, 0, nullptr);
    CHECK(contains(type, "x is torch.int64, allowed: float32, float16, bfloat16, float64"), type);
    const std::string out = refusal(DType::kFloat32, DType::kFloat64, 0, nullptr);
    CHECK(contains(out, "y is float64 and x is float32"), out);
    CHECK(contains(refusal(DType::kFloat32, DType::kFloat32, 1, nullptr), "first=1, n=8"));
    const std::string part = error_of<ConfigError>([&] {
      cast.roundtrip(x, DType::kFloat32, {.count = 16, .columns = 16}, 8, 8, y, DType::kFloat32,
                     &one);
    });
    CHECK(contains(part, "multiples of"), part);
  });
}

TEST(conformance_casts_as_text_and_hash) { check_declarations(casts()); }

}  // namespace cgx::native
