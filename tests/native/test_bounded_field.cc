// Fields of the error-bounded compressor: tokens, shapes, holes, the way through a plane, and what
// comes back of numbers of all kinds.
#include <algorithm>
#include <cmath>
#include <limits>

#include "bounded_fields.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/field/promise.h"
#include "codec/bounded/field/tokens.h"
#include "codec/bounded/field/walk-inl.h"

namespace cgx::native {
namespace {

using bounded::PayloadError;
using bounded::field::geometry_of;
using bounded::field::Holes;
using bounded::field::kEscape;
using bounded::field::kNoResidual;
using bounded::field::Row;
using bounded::field::Tokens;
using bounded::field::Walk;
using bounded::field::Weights;

template <typename Residual>
void check_tokens() {
  using U = std::make_unsigned_t<Residual>;
  std::vector<Residual> residuals;
  for (U around = 1; around != 0; around <<= 1) {
    for (int off = -20; off <= 20; ++off) {
      residuals.push_back(static_cast<Residual>(around + static_cast<U>(off)));
      residuals.push_back(static_cast<Residual>(U{0} - around + static_cast<U>(off)));
    }
  }
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    residuals.push_back(
        static_cast<Residual>(static_cast<Residual>(random()) >> random(8 * sizeof(Residual))));
  }
  for (const Residual residual : residuals) {
    const auto token = Tokens<Residual>::of(residual);
    if (static_cast<U>(residual) == Tokens<Residual>::kTooLong) {
      CHECK(token.token == kEscape && token.count == 0);
      continue;
    }
    CHECK(token.token < Tokens<Residual>::kEnd, residual);
    CHECK(token.count == Tokens<Residual>::count_of(token.token), residual);
    CHECK(Tokens<Residual>::residual_of(token.token, token.bits) == residual, residual);
  }
  // Every token has residuals, and is theirs.
  for (uint32_t token = 0; token < Tokens<Residual>::kEnd; ++token) {
    const auto byte = static_cast<uint8_t>(token);
    const int count = Tokens<Residual>::count_of(byte);
    for (const uint64_t bits : {uint64_t{0}, (uint64_t{1} << count) - 1}) {
      const auto found = Tokens<Residual>::of(Tokens<Residual>::residual_of(byte, bits));
      CHECK(found.token == token && found.bits == bits && found.count == count, token);
    }
  }
}

// The loops of a level against tokens.h.
template <typename T>
void check_token_loops() {
  using Residual = bounded::field::ResidualOf<T>;
  Random random(5);
  for (const size_t n : {1, 7, 8, 9, 100}) {
    for (int bits = 1; bits <= static_cast<int>(8 * sizeof(T)); ++bits) {
      std::vector<Residual> residuals(n + 8), back(n + 8);
      bool small = true, known = true;
      for (size_t i = 0; i < n; ++i) {
        residuals[i] = static_cast<Residual>(static_cast<Residual>(random()) >>
                                             (8 * static_cast<int>(sizeof(T)) - bits));
        if (random(50) == 0) residuals[i] = kNoResidual<T>;
        const auto token = Tokens<Residual>::of(residuals[i]);
        small = small && token.token < Tokens<Residual>::kFirstLong;
        known = known && token.token != kEscape;
      }
      for (const std::string& level : simd_levels()) {
        const AtSimdLevel at(level);
        const auto& loops = bounded::field::row_loops<T>();
        std::vector<uint8_t> tokens(n + 8), counts(n + 8);
        CHECK(loops.short_tokens(residuals.data(), n, tokens.data()) == small);
        if (small) {
          CHECK(loops.short_residuals(tokens.data(), n, back.data()));
          CHECK(std::equal(back.begin(), back.begin() + static_cast<std::ptrdiff_t>(n),
                           residuals.begin()));
        }
        if (!loops.tokens(residuals.data(), n, tokens.data(), counts.data())) continue;
        CHECK(known);
        for (size_t i = 0; i < n; ++i) {
          const auto token = Tokens<Residual>::of(residuals[i]);
          CHECK(tokens[i] == token.token && counts[i] == token.count, residuals[i]);
        }
      }
    }
  }
}

// Each place of a plane comes once, and what a straight plane is predicted by is the plane.
void check_walk(uint32_t width, uint32_t height) {
  const Geometry geometry{width, height, 0};
  const Weights weights[bounded::field::kGroups] = {};
  Walk<float> walk;
  walk.begin(geometry, weights, 5, false);
  const auto value = [&](size_t place, int plane) {
    const auto c = static_cast<int>(place % width), r = static_cast<int>(place / width);
    return static_cast<float>(3 * c - 5 * r + 7 + 100 * plane);
  };
  for (int plane = 0; plane < 3; ++plane) {
    std::vector<int> seen(geometry.plane());
    walk.plane([&](const Row<float>& row) {
      CHECK(row.n > 0 && row.group < bounded::field::kGroups);
      for (size_t i = 0; i < row.n; ++i) {
        const size_t place = row.at + i * row.step;
        CHECK(place < seen.size() && place / width == row.at / width);
        CHECK(++seen[place] == 1, place);
        const bool anchor = row.group == bounded::field::kAnchors;
        // Two known values on each line are enough for a straight one.
        const bool known = row.step < width && row.step < height;
        if (!anchor && known) CHECK(row.predicted[i] == value(place, plane), place);
        if (anchor && plane > 0) CHECK(row.predicted[i] == value(place, plane - 1), place);
        if (anchor && plane == 0 && place == 0) CHECK(row.predicted[i] == 5);
        row.values[i] = value(place, plane);
        row.size[i] = 0;
      }
    });
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

template <typename T>
void check_shape(FieldEncoder<T>& encoder, FieldDecoder<T>& decoder, const Geometry& geometry,
                 size_t n, Random& random) {
  const auto kind = static_cast<Kind>(random(3));
  const auto pattern = static_cast<int>(random(kNumberPatterns));
  const size_t holes = random(3) == 0 ? 1 + random(40) : 0;
  const size_t escapes = random(4) == 0 ? 1 + random(40) : 0;
  const auto field = make_field<T>(kind, geometry, n, pattern, holes, escapes, random);
  check_field(encoder, decoder, field,
              str_of("width ", geometry.width, ", height ", geometry.height, ", start ",
                     geometry.start, ", n ", n, ", kind ", static_cast<int>(kind), ", pattern ",
                     pattern, ", holes ", holes, ", escapes ", escapes));
}

}  // namespace

TEST(bounded_field_tokens) {
  check_tokens<int32_t>();
  check_tokens<int64_t>();
  CHECK(Tokens<int32_t>::kEnd == 247 && Tokens<int64_t>::kEnd == kEscape);
  check_token_loops<float>();
  check_token_loops<double>();
}

TEST(bounded_field_geometry) {
  const auto same = [](std::vector<uint64_t> shape, uint64_t first, size_t n, Geometry expected) {
    const Geometry found = geometry_of(shape, first, n);
    CHECK(found.width == expected.width && found.height == expected.height &&
              found.start == expected.start,
          found.width, " ", found.height, " ", found.start);
  };
  same({}, 0, 1, {1, 1, 0});
  same({5000}, 0, 5000, {5000, 1, 0});
  same({100'000}, 65536, 34464, {34464, 1, 0});
  same({40, 50}, 0, 2000, {50, 40, 0});
  same({1, 40, 1, 50, 1}, 0, 2000, {50, 40, 0});
  same({7, 40, 50}, 0, 14'000, {50, 40, 0});
  same({2, 7, 40, 50}, 0, 28'000, {50, 40, 0});
  same({40, 40, 50}, 65536, 14'464, {50, 40, 1536});
  same({1000, 1000}, 65536, 65536, {1000, 67, 536});  // a part of a plane
  same({2, 40'000}, 65536, 14'464, {14'464, 1, 0});
  Random random(1);
  for (int turn = 0; turn < 3000; ++turn) {
    std::vector<uint64_t> shape(random(5));
    uint64_t values = 1;
    for (uint64_t& dim : shape) values *= dim = 1 + random(70);
    const uint64_t first = random(values);
    const size_t n = std::min<size_t>(1 + random(70'000), values - first);
    const Geometry found = geometry_of(shape, first, n);
    // What a reader allows, so that it takes no more memory than the values.
    CHECK(found.width >= 1 && found.width <= 2 * n && found.height >= 1 && found.height <= 2 * n);
    CHECK(found.plane() <= 4 * n && found.start < found.plane());
    CHECK(found.planes(n) * found.plane() >= found.start + n);
  }
}

TEST(bounded_field_walk) {
  for (uint32_t width = 1; width <= 70; ++width) {
    for (const uint32_t height : {1u, 2u, 3u, 5u, 8u, 17u, 33u, 64u, 69u}) {
      check_walk(width, height);
      check_walk(height, width);
    }
  }
  check_walk(1000, 3);
  check_walk(2, 600);
}

TEST(bounded_field_holes) {
  Random random(2);
  for (int turn = 0; turn < 600; ++turn) {
    const Geometry geometry{1 + static_cast<uint32_t>(random(40)),
                            1 + static_cast<uint32_t>(random(20)), 0};
    const size_t n = 1 + random(3000);
    auto holes = make_field<double>(Kind::kExact, geometry, n, 4, 1 + random(80), 0, random).holes;
    if (holes.count == 0) continue;
    if (turn % 3 > 0) {
      // The same in each row, or plane.
      const size_t period = turn % 3 == 1 ? geometry.width : geometry.plane();
      for (size_t i = period; i < n; ++i) holes.is_hole[i] = holes.is_hole[i - period];
      holes.count =
          static_cast<size_t>(std::count(holes.is_hole.begin(), holes.is_hole.end(), uint8_t{1}));
      if (holes.count == 0) continue;
      holes.fill_of.assign(holes.fills.size() > 1 ? holes.count : 0, 0);
    }
    Block made;
    holes.write(geometry, DType::kFloat64, n, made);
    const size_t length = made.size();
    made.push_back(std::byte{77});  // what follows stays
    std::span<const std::byte> in = made;
    const Holes found = Holes::read(geometry, DType::kFloat64, n, in);
    CHECK(in.size() == 1 && in.data() == made.data() + length);
    CHECK(found.is_hole == holes.is_hole && found.fills == holes.fills);
    CHECK(found.fill_of == holes.fill_of && found.count == holes.count);
    for (size_t size = 0; size < length; size += 1 + random(8)) {
      const ExactBytes cut({made.data(), size}, 0);
      in = cut.span();
      error_of<PayloadError>([&] { Holes::read(geometry, DType::kFloat64, n, in); });
    }
    for (int k = 0; k < 20; ++k) {
      Block other = made;
      other[random(length)] = static_cast<std::byte>(random());
      const ExactBytes exact(other, 0);
      in = exact.span();
      try {
        const Holes some = Holes::read(geometry, DType::kFloat64, n, in);
        Block values(8 * n);
        some.put(DType::kFloat64, values.data());
      } catch (const PayloadError&) {
      }
    }
  }
}

// All widths that a field may have, odd and even heights, blocks that begin and end within a plane.
TEST(bounded_fields_of_all_shapes) {
  Random random(11);
  FieldEncoder<float> narrow;
  FieldDecoder<float> narrow_back;
  FieldEncoder<double> wide;
  FieldDecoder<double> wide_back;
  for (auto width = static_cast<uint32_t>(bounded::field::kLeastWidth); width <= 70; ++width) {
    for (int turn = 0; turn < 6; ++turn) {
      const auto height = static_cast<uint32_t>(1 + random(turn == 0 ? 70 : 9));
      const size_t plane = size_t{width} * height;
      // As few as a reader allows, at least.
      const size_t least = std::max<size_t>({(plane + 3) / 4, (width + 1) / 2, (height + 1) / 2});
      const size_t n = std::max<size_t>(least, 1 + random(3 * plane));
      const Geometry geometry{width, height, static_cast<uint32_t>(random(plane))};
      check_shape(narrow, narrow_back, geometry, n, random);
      check_shape(wide, wide_back, geometry, n, random);
    }
  }
}

TEST(bounded_fields_of_all_numbers) {
  Random random(12);
  FieldEncoder<float> narrow;
  FieldDecoder<float> narrow_back;
  FieldEncoder<double> wide;
  FieldDecoder<double> wide_back;
  const Geometry geometries[] = {{29, 17, 100}, {1500, 1, 0}, {37, 40, 0}};
  for (const Geometry& geometry : geometries) {
    for (const Kind kind : {Kind::kGrid, Kind::kExact, Kind::kWords}) {
      for (int pattern = 0; pattern < kNumberPatterns; ++pattern) {
        for (const size_t gaps : {0, 1, 7, 300}) {
          const std::string what = str_of("kind ", static_cast<int>(kind), ", pattern ", pattern,
                                          ", gaps ", gaps, ", width ", geometry.width);
          const auto a = make_field<float>(kind, geometry, 1400, pattern, gaps, gaps, random);
          check_field(narrow, narrow_back, a, what);
          const auto b = make_field<double>(kind, geometry, 1400, pattern, gaps, gaps, random);
          check_field(wide, wide_back, b, what);
        }
      }
    }
  }
}

// A bound among subnormal numbers, whose differences are exact, must not be rounded up.
TEST(bounded_fields_within_subnormal_bounds) {
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const FloatMode mode;
    const auto& loops = bounded::field::row_loops<float>();
    for (double bound = 0x1p-149; bound < 0x1p-126; bound *= 1.37) {
      const double step = 2 * bound - 0x1p-149;
      const auto least = static_cast<float>(bound);
      float x[16], predicted[16] = {}, values[16], size[16];
      for (int i = 0; i < 16; ++i) x[i] = static_cast<float>(least + (i - 8) * 0x1p-149);
      int32_t residuals[16];
      loops.to_grid(x, predicted, 16, step, bound, {residuals, values, size});
      for (int i = 0; i < 16; ++i) {
        if (residuals[i] == kNoResidual<float>) continue;
        const double off = std::fabs(static_cast<double>(x[i]) - static_cast<double>(values[i]));
        CHECK(off <= bound, "bound ", bound, ", off by ", off);
      }
    }
  }
}

TEST(bounded_fields_that_are_cut_or_altered) {
  Random random(13);
  FieldEncoder<float> narrow;
  FieldDecoder<float> narrow_back;
  FieldEncoder<double> wide;
  FieldDecoder<double> wide_back;
  size_t taken = 0, all = 0;
  const auto check = [&]<typename T>(FieldEncoder<T>& encoder, FieldDecoder<T>& decoder) {
    const Geometry geometry{1 + static_cast<uint32_t>(random(40)),
                            1 + static_cast<uint32_t>(random(9)), 0};
    const auto field = make_field<T>(static_cast<Kind>(random(3)), geometry, 50 + random(900),
                                     static_cast<int>(random(kNumberPatterns)), random(3) * 20,
                                     random(3) * 20, random);
    const Block made = encode_field(encoder, field);
    for (int k = 0; k < 6; ++k) {
      const Block cut(made.begin(),
                      made.begin() + static_cast<std::ptrdiff_t>(random(made.size())));
      CHECK(!check_any_field(decoder, cut, field.element, field.n(), "cut"));
    }
    for (int k = 0; k < 40; ++k) {
      Block other = made;
      const size_t at = random(random(2) == 0 ? other.size() : std::min<size_t>(other.size(), 130));
      other[at] = random(2) == 0 ? static_cast<std::byte>(random())
                                 : other[at] ^ static_cast<std::byte>(1 << random(8));
      ++all;
      taken += check_any_field(decoder, other, field.element, field.n(), "altered") ? 1 : 0;
    }
  };
  for (int turn = 0; turn < 60; ++turn) {
    check(narrow, narrow_back);
    check(wide, wide_back);
  }
  CHECK(taken > all / 50 && taken < all * 4 / 5, taken, " of ", all);
}

// Planes of far more places than a block has values would be memory for nothing.
TEST(bounded_fields_of_few_values_take_little_memory) {
  const auto error = [](uint64_t width, uint64_t height, uint64_t start, size_t n) {
    Block block{std::byte{1}};
    for (const uint64_t number : {width, height, start}) bounded::append_number(block, number);
    block.resize(block.size() + 100);
    FieldDecoder<float> decoder;
    return error_of<PayloadError>([&] { decoder.decode(block, DType::kFloat32, n); });
  };
  constexpr uint64_t kHuge = uint64_t{1} << 33;
  for (const auto& [width, height, start] : {std::array<uint64_t, 3>{0, 1, 0},
                                             {8, 0, 0},
                                             {201, 1, 0},
                                             {8, 201, 0},
                                             {7, 9, 0},
                                             {21, 20, 0},
                                             {10, 10, 100},
                                             {kHuge, kHuge, 0},
                                             {kHuge, 1, 0},
                                             {UINT64_MAX, UINT64_MAX, UINT64_MAX}}) {
    CHECK(contains(error(width, height, start, 100), "a field of 100 values has planes of"));
  }
}

}  // namespace cgx::native
