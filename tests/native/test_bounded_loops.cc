// The loops of the error-bounded compressor at every SIMD level, against plain models.
#include <utility>

#include "bounded_values.h"
#include "codec/bounded/loops/loops.h"

namespace cgx::native {
namespace {

using bounded::Grid;
using bounded::kOutlier;
using bounded::kSlice;
using bounded::Low;

template <typename Word>
using ValueOf = std::conditional_t<sizeof(Word) == 4, float, double>;

template <typename Word>
const auto& loops_of() {
  if constexpr (sizeof(Word) == 4) {
    return bounded::loops().narrow;
  } else {
    return bounded::loops().wide;
  }
}

// The least and the greatest sizes, and those around a register of any width.
constexpr size_t kSizes[] = {1,  2,  7,  8,   9,   15,  16,  17,   31,   32,    33,
                             63, 64, 65, 100, 127, 128, 129, 1000, 1023, kSlice};

// What split() leaves, by the description in loops.h.
template <typename Word>
void check_split(size_t n, int width, Random& random) {
  using U = std::make_unsigned_t<Word>;
  const size_t whole = static_cast<size_t>(width) / 8, rest = static_cast<size_t>(width) % 8;
  const size_t plane = (n + 63) / 64 * 8;
  const auto base = static_cast<Word>(random());
  const auto residuals = std::make_unique<Word[]>(n);
  bool outlier = false;
  std::vector<U> above(n);
  for (size_t i = 0; i < n; ++i) {
    const U most = static_cast<U>(U{255} << width);  // of symbols, and some outliers
    above[i] = random(9) == 0 ? static_cast<U>(random()) : static_cast<U>(random() % most);
    residuals[i] = static_cast<Word>(above[i] + static_cast<U>(base));
    outlier = outlier || (above[i] >> width) >= kOutlier;
  }
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const std::string what =
        str_of("level ", level, ", ", 8 * sizeof(Word), " bits, n ", n, ", width ", width);
    // Memory of exactly the sizes that may be touched, none of them aligned; planes lie apart.
    const ExactBytes memory(
        std::vector<std::byte>(whole * (n + 3) + rest * (plane + 5), std::byte{0x5a}), 1);
    auto* bytes = reinterpret_cast<uint8_t*>(memory.data());
    uint8_t* const bits = bytes + whole * (n + 3);
    const auto symbols = std::make_unique<uint8_t[]>(n);
    const Low<uint8_t> low{width, bytes, n + 3, bits, plane + 5};
    CHECK(loops_of<Word>().split(residuals.get(), n, base, low, symbols.get()) == outlier, what);
    for (size_t i = 0; i < n; ++i) {
      CHECK(symbols[i] == std::min<U>(above[i] >> width, kOutlier), what, ", symbol ", i);
      for (size_t k = 0; k < whole; ++k) {
        CHECK(bytes[k * (n + 3) + i] == static_cast<uint8_t>(above[i] >> (8 * k)), what);
      }
    }
    for (size_t k = 0; k < rest; ++k) {
      for (size_t i = 0; i < 8 * plane; ++i) {
        const unsigned bit = (bits[k * (plane + 5) + i / 8] >> (i % 8)) & 1;
        const U wanted = i < n ? (above[i] >> (8 * whole + k)) & 1 : 0;
        CHECK(bit == wanted, what, ", plane ", k, ", bit ", i);
      }
    }
    const auto joined = std::make_unique<Word[]>(n);
    const Low<const uint8_t> made{width, bytes, n + 3, bits, plane + 5};
    CHECK(loops_of<Word>().join(symbols.get(), n, base, made, joined.get()) == outlier, what);
    for (size_t i = 0; i < n; ++i) {
      const U mask = static_cast<U>((U{1} << width) - 1);
      const U found = static_cast<U>((static_cast<U>(symbols[i]) << width) + (above[i] & mask) +
                                     static_cast<U>(base));
      CHECK(joined[i] == static_cast<Word>(found), what, ", word ", i);
    }
  }
}

template <typename Word>
void check_sums(size_t n, Random& random) {
  using U = std::make_unsigned_t<Word>;
  const auto words = std::make_unique<Word[]>(n);
  for (size_t i = 0; i < n; ++i) words[i] = static_cast<Word>(random());  // so that sums wrap
  const auto before = static_cast<Word>(random());
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const auto steps = std::make_unique<Word[]>(n);
    loops_of<Word>().difference(words.get(), n, before, steps.get());
    for (size_t i = 0; i < n; ++i) {
      const Word last = i == 0 ? before : words[i - 1];
      CHECK(steps[i] == static_cast<Word>(static_cast<U>(words[i]) - static_cast<U>(last)));
    }
    CHECK(loops_of<Word>().sum(steps.get(), n, before) == words[n - 1]);
    CHECK(std::equal(words.get(), words.get() + n, steps.get()), "level ", level, ", n ", n);
  }
}

// Where to_grid() finds nothing wrong, from_grid() gives back what is within the bound; and all levels
// find the same.
template <typename Word>
void check_grid(const Block& values, const Grid& grid, bool curved, const std::string& what) {
  using Value = ValueOf<Word>;
  constexpr DType kElement = sizeof(Word) == 4 ? DType::kFloat32 : DType::kFloat64;
  const size_t n = values.size() / sizeof(Value);
  const ExactBytes memory(values, 0);
  const auto* x = reinterpret_cast<const Value*>(memory.data());
  Random random(n);
  std::vector<double> fit(n);
  for (double& value : fit) value = random.signed_unit() * 300;
  std::vector<Word> expected;
  bool bad = false;
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const auto words = std::make_unique<Word[]>(n);
    const double* curve = curved ? fit.data() : nullptr;
    const bool found = loops_of<Word>().to_grid(x, n, grid, curve, words.get());
    if (expected.empty()) {
      expected.assign(words.get(), words.get() + n);
      bad = found;
    }
    CHECK(found == bad, what, ", level ", level);
    const auto y = std::make_unique<Value[]>(n);
    constexpr Word kMost = bounded::kMostWord<Word>;
    const bool far = std::any_of(words.get(), words.get() + n,
                                 [](Word word) { return word < -kMost || word > kMost; });
    CHECK(loops_of<Word>().from_grid(words.get(), n, grid.step, curve, kMost, y.get()) ==
              (far && !curved),
          what, ", level ", level);
    CHECK(bad || !far, what, ", level ", level);
    for (size_t i = 0; i < n; ++i) {
      const uint64_t bits = raw_bits(kElement, values.data() + i * sizeof(Value));
      const auto wrong =
          broken_promise(kElement, BoundKind::kAbsolute, grid.bound, bits,
                         raw_bits(kElement, reinterpret_cast<const std::byte*>(y.get() + i)));
      // One value by itself, as for blocks with special values.
      Word word;
      const bool alone =
          loops_of<Word>().to_grid(x + i, 1, grid, curved ? &fit[i] : nullptr, &word);
      CHECK(bad || !alone, what, ", level ", level, ", value ", i);
      if (alone) continue;
      CHECK(word == words[i] && word == expected[i], what, ", level ", level, ", value ", i);
      CHECK(!wrong, what, ", level ", level, ": ", wrong.value_or(""));
    }
  }
}

template <typename Word>
void check_grids(size_t n, int pattern, double bound, bool curved) {
  constexpr DType kElement = sizeof(Word) == 4 ? DType::kFloat32 : DType::kFloat64;
  const Block x = hard_values(kElement, pattern, n, bound, n + static_cast<size_t>(pattern));
  for (const double unit : {0.0, 0x1p-149, 0x1p-24, 0x1p-10, 0x1p104}) {
    const Grid grid = bounded::make_grid(bound, unit);
    CHECK(grid.step > bound && grid.step <= 2 * bound, "step ", grid.step, " for ", bound);
    check_grid<Word>(x, grid, curved,
                     str_of(8 * sizeof(Word), " bits, n ", n, ", pattern ", pattern, ", bound ",
                            bound, ", unit ", unit, ", curve ", curved));
  }
}

// to_symbols() is to_grid() and split(), or does nothing that counts. Whether it has done it.
template <typename Word>
bool check_at_once(const ValueOf<Word>* x, size_t n, const Grid& grid, int width,
                   const std::string& what) {
  const auto& loops = loops_of<Word>();
  const size_t plane = (n + 63) / 64 * 8, whole = static_cast<size_t>(width) / 8;
  const size_t low_bytes = whole * n + static_cast<size_t>(width) % 8 * plane;
  const auto base = static_cast<Word>(-(int64_t{127} << width));
  const auto low_of = [&](const ExactBytes& memory) {
    auto* bytes = reinterpret_cast<uint8_t*>(memory.data());
    return Low<uint8_t>{width, bytes, n, bytes + whole * n, plane};
  };
  const ExactBytes expected_low(Block(low_bytes), 0), low(Block(low_bytes), 0);
  const auto words = std::make_unique<Word[]>(n);
  const auto expected = std::make_unique<uint8_t[]>(n), symbols = std::make_unique<uint8_t[]>(n);
  const bool bad = loops.to_grid(x, n, grid, nullptr, words.get()) ||
                   loops.split(words.get(), n, base, low_of(expected_low), expected.get());
  if (loops.to_symbols(x, n, grid, base, low_of(low), symbols.get())) return false;
  CHECK(!bad, what);
  CHECK(std::equal(symbols.get(), symbols.get() + n, expected.get()), what);
  CHECK(std::equal(low.data(), low.data() + low_bytes, expected_low.data()), what);
  return true;
}

template <typename Word>
void check_at_once_of(int pattern, size_t n, double bound, int width) {
  constexpr DType kElement = sizeof(Word) == 4 ? DType::kFloat32 : DType::kFloat64;
  const ExactBytes memory(hard_values(kElement, pattern, n, bound, n), 0);
  const Grid grid = bounded::make_grid(bound, 0);
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    check_at_once<Word>(reinterpret_cast<const ValueOf<Word>*>(memory.data()), n, grid, width,
                        str_of(8 * sizeof(Word), " bits, level ", level, ", pattern ", pattern,
                               ", n ", n, ", bound ", bound, ", width ", width));
  }
}

template <typename Word>
void check_lengths(size_t n, Random& random) {
  using U = std::make_unsigned_t<Word>;
  constexpr int kBits = 8 * static_cast<int>(sizeof(Word));
  const auto residuals = std::make_unique<Word[]>(n), lengths = std::make_unique<Word[]>(n);
  const auto center = static_cast<Word>(random() >> random(64));
  for (size_t i = 0; i < n; ++i) {
    const auto distance = static_cast<U>(random() >> random(64));
    residuals[i] = static_cast<Word>(static_cast<U>(center) + distance);
    if (random(4) == 0) residuals[i] = static_cast<Word>(random());
  }
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    loops_of<Word>().lengths(residuals.get(), n, center, lengths.get());
    for (size_t i = 0; i < n; ++i) {
      const auto apart = static_cast<Word>(static_cast<U>(residuals[i]) - static_cast<U>(center));
      const auto magnitude = static_cast<U>(apart < 0 ? -(apart + 1) : apart);
      Word bits = 0;
      while (bits < kBits && (magnitude >> bits) != 0) ++bits;
      CHECK(lengths[i] == bits, "level ", level, ", ", apart, " has ", lengths[i], " bits");
    }
    for (const Word longest : {lengths[0], lengths[n / 2], lengths[n - 1]}) {
      std::vector<Word> some;
      for (size_t i = 0; i < n; ++i) {
        if (lengths[i] <= longest) some.push_back(residuals[i]);
      }
      const auto [least, greatest] = std::minmax_element(some.begin(), some.end());
      const auto found = loops_of<Word>().extremes(residuals.get(), lengths.get(), n, longest);
      CHECK(found.least == *least && found.greatest == *greatest, "level ", level, ", n ", n);
    }
  }
}

}  // namespace

TEST(bounded_symbols_at_once) {
  for (const size_t n : {1, 32, 63, 64, 65, 96, 128, 192, 1000, 1024}) {
    for (int pattern = 0; pattern < kFloatPatterns; ++pattern) {
      for (const double bound : {1e-4, 0x1p-20, 3e4, 1e-30}) {
        for (const int width : {0, 3, 8, 13, 24}) {
          check_at_once_of<int32_t>(pattern, n, bound, width);
          check_at_once_of<int64_t>(pattern, n, bound, width);
        }
      }
    }
  }
}

// The levels that can do it do, unless one value is in the way, wherever it lies.
TEST(bounded_symbols_at_once_of_plain_values) {
  constexpr size_t kValues = 256;
  const Grid grid = bounded::make_grid(1e-4, 0);
  Random random(3);
  std::vector<float> x(kValues);
  for (float& value : x) value = static_cast<float>(random.signed_unit() * 0.05);
  const int width = 2;  // 0.05 is 250 steps, and 127 symbols of 4 are above 0
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const bool able = check_at_once<int32_t>(x.data(), kValues, grid, width, level);
    CHECK(able == (level == "avx2" || level == "avx512"), "level ", level);
    for (size_t i = 0; i < kValues; ++i) {
      for (const float hard : {NAN, -0.0F, 0.15F, -0.15F, 1e30F, INFINITY}) {
        const float before = std::exchange(x[i], hard);
        const std::string what = str_of("level ", level, ", ", hard, " at ", i);
        CHECK(!check_at_once<int32_t>(x.data(), kValues, grid, width, what), what);
        x[i] = before;
      }
      for (const float tiny : {1e-40F, -1e-40F, 1e-45F, -1e-45F}) {
        const float before = std::exchange(x[i], tiny);
        const std::string what = str_of("level ", level, ", ", tiny, " at ", i);
        CHECK(check_at_once<int32_t>(x.data(), kValues, grid, width, what) == able, what);
        x[i] = before;
      }
    }
  }
}

TEST(bounded_lengths_and_extremes) {
  Random random(4);
  for (const size_t n : kSizes) {
    for (int round = 0; round < 20; ++round) {
      check_lengths<int32_t>(n, random);
      check_lengths<int64_t>(n, random);
    }
  }
}

TEST(bounded_planes_of_bits) {
  Random random(1);
  for (const size_t n : kSizes) {
    for (int width = 0; width <= 24; ++width) check_split<int32_t>(n, width, random);
    for (int width = 0; width <= 56; width += n < 100 ? 1 : 5) {
      check_split<int64_t>(n, width, random);
    }
  }
}

TEST(bounded_differences_wrap) {
  Random random(2);
  for (const size_t n : kSizes) {
    check_sums<int32_t>(n, random);
    check_sums<int64_t>(n, random);
  }
}

TEST(bounded_grid_at_all_levels) {
  for (int pattern = 0; pattern < kFloatPatterns; ++pattern) {
    for (const double bound : {1e-4, 0x1p-20, 3e4, 1e-30, 1e200}) {
      for (const size_t n : {size_t{1}, size_t{16}, size_t{37}, size_t{128}}) {
        check_grids<int32_t>(n, pattern, bound, n % 2 == 1);
        check_grids<int64_t>(n, pattern, bound, n % 2 == 1);
        check_grids<int32_t>(n, pattern, bound, n % 2 == 0);
      }
    }
  }
}

// A place of more than 31 bits, at every place of a register: no level takes it for another one.
TEST(bounded_grid_refuses_far_places) {
  constexpr size_t kValues = 48;
  const Grid grid = bounded::make_grid(7e-5, 0);
  for (size_t at = 0; at < kValues; ++at) {
    for (const double place : {-0x1p31, 0x1p31, -0x1p31 - 64, 0x1p32, -0x1p40, 0x1p52, 1e30}) {
      Block x(kValues * 4, std::byte{0});
      const auto value = static_cast<float>(place * grid.step);
      std::memcpy(x.data() + 4 * at, &value, 4);
      check_grid<int32_t>(x, grid, false, str_of("place ", place, " at ", at));
    }
  }
}

// from_grid() names words beyond `most`, at every place of a register, and none that is not.
TEST(bounded_grid_names_words_beyond_the_most) {
  const auto check = [](auto most) {
    using Word = decltype(most);
    constexpr size_t kValues = 70;
    for (const std::string& level : simd_levels()) {
      const AtSimdLevel at(level);
      std::vector<Word> words(kValues);
      std::vector<ValueOf<Word>> y(kValues);
      const auto beyond = [&] {
        return loops_of<Word>().from_grid(words.data(), kValues, 1e-3, nullptr, most, y.data());
      };
      for (size_t i = 0; i < kValues; ++i) {
        for (const Word good : {most, static_cast<Word>(-most)}) {
          words[i] = good;
          CHECK(!beyond(), "level ", level, ", place ", i, ", word ", good);
        }
        for (const Word bad : {static_cast<Word>(most + 1), static_cast<Word>(-most - 1),
                               std::numeric_limits<Word>::min()}) {
          words[i] = bad;
          CHECK(beyond(), "level ", level, ", place ", i, ", word ", bad);
        }
        words[i] = 0;
      }
    }
  };
  check(int32_t{1000});
  check(bounded::kMostWord<int64_t>);
  check(int64_t{1} << 40);
}

TEST(bounded_most_word_is_the_last_finite_one) {
  for (const double step : {5e-324, 1e-3, 1.0, 0x1p96, 0x1p97, 0x1.3p100, 1e30, 3e38, 1e39}) {
    const auto most = bounded::most_word<int32_t>(step);
    CHECK(std::isfinite(static_cast<float>(most * step)), step);
    const bool last = most == bounded::kMostWord<int32_t> ||
                      !std::isfinite(static_cast<float>((most + 1.0) * step));
    CHECK(last, step, ": ", most);
  }
  for (const double step : {1e-3, 1e290, 0x1p972, 0x1p973, 1e300, 1.7e308}) {
    const auto most = bounded::most_word<int64_t>(step);
    CHECK(std::isfinite(static_cast<double>(most) * step), step);
    const bool last =
        most == bounded::kMostWord<int64_t> || !std::isfinite(static_cast<double>(most + 1) * step);
    CHECK(last, step, ": ", most);
  }
}

// The step that grid.h promises: decoded values are multiples of the unit in the last place.
TEST(bounded_grid_step_holds_every_value) {
  Random random(9);
  for (int round = 0; round < 300; ++round) {
    const double unit = std::ldexp(1.0, static_cast<int>(random(40)) - 30);
    const double bound = unit * (0.3 + 20 * std::fabs(random.signed_unit()));
    const Grid grid = bounded::make_grid(bound, unit);
    for (int i = 0; i < 50; ++i) {  // whole units, of up to 24 bits
      const auto x = static_cast<float>(std::nearbyint(random.signed_unit() * 0x1p24) * unit);
      const auto y = static_cast<float>(std::nearbyint(x * grid.inverse) * grid.step);
      // The last place of a step may round away; then the value is special. It is rare.
      CHECK(std::fabs(static_cast<double>(x) - y) <= bound * (1 + 1e-6), x, " became ", y,
            ", bound ", bound, ", unit ", unit);
    }
  }
}

}  // namespace cgx::native
