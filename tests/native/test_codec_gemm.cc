// Products of matrices in formats: term by term with the casts of rule.h, which the ways of
// codec/gemm/rounding.h have to equal; Hopper's sums by a model in integers.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "codec/cast.h"
#include "codec/gemm/product.h"
#include "data.h"

namespace cgx::native {
namespace {

using formats::Kind;
using formats::Rule;
using gemm::Matrix;
using gemm::Shape;
using gemm::Sums;
using gemm::Way;

struct Accumulated {
  std::string text;
  Kind kind;
  Rule<float> rule;

  explicit Accumulated(const std::string& of) : text(of) {
    casting::on_gpu::Call call{};
    CHECK(make_cast(casts().parse(of))->set_call(call), of);
    kind = static_cast<Kind>(call.kind);
    rule = call.narrow;
  }
  float cast(float x) const {
    if (kind == Kind::kCpd) return formats::rounded<Kind::kCpd>(rule, x, 0);
    if (kind == Kind::kZero) return formats::rounded<Kind::kZero>(rule, x, 0);
    return formats::rounded<Kind::kNearest>(rule, x, 0);
  }
};

struct Chosen {
  const char* text;
  Way way;
};

constexpr Chosen kChosen[] = {
    {"float exponent=5 mantissa=2", Way::kScaled},
    {"float exponent=5 mantissa=10", Way::kScaled},
    {"float exponent=2 mantissa=1", Way::kScaled},
    {"float exponent=7 mantissa=21", Way::kScaled},
    {"float exponent=4 mantissa=3 variant=fn", Way::kClamped},
    {"float exponent=2 mantissa=1 variant=finite", Way::kClamped},
    {"float exponent=5 mantissa=10 overflow=saturate", Way::kClamped},
    {"float exponent=1 mantissa=3 overflow=saturate", Way::kClamped},
    {"float exponent=1 mantissa=3", Way::kSelected},
    {"float exponent=4 mantissa=3 variant=fn overflow=nan", Way::kSelected},
    {"float exponent=5 mantissa=2 variant=fnuz", Way::kSelected},
    {"float exponent=4 mantissa=3 variant=p3109", Way::kSelected},
    {"float exponent=5 mantissa=2 overflow=nan", Way::kSelected},
    {"float exponent=8 mantissa=7", Way::kBits},
    {"float exponent=8 mantissa=1", Way::kBits},
    {"float exponent=8 mantissa=23", Way::kBits},
    {"fixed word=8 fraction=4", Way::kFixed},
    {"fixed word=23 fraction=10 symmetric=1", Way::kFixed},
    {"fixed word=4 fraction=-20", Way::kFixed},
    {"float exponent=5 mantissa=2 variant=cpd", Way::kCpd},
    {"float exponent=3 mantissa=0 variant=cpd", Way::kCpd},
    {"float exponent=7 mantissa=21 variant=cpd", Way::kCpd},
    {"float exponent=8 mantissa=23 variant=cpd", Way::kCpdBits},
    {"float exponent=8 mantissa=7 variant=cpd", Way::kCpdBits},
    {"float exponent=5 mantissa=2 rounding=zero", Way::kZero},
    {"float exponent=5 mantissa=2 rounding=zero overflow=saturate", Way::kZero},
    {"float exponent=3 mantissa=0 rounding=zero variant=fnuz", Way::kZero},
    {"float exponent=7 mantissa=23 rounding=zero", Way::kZero},
    {"float exponent=8 mantissa=7 rounding=zero", Way::kZeroBits},
    {"float exponent=3 mantissa=0", Way::kAnyNearest},
    {"float exponent=5 mantissa=2 subnormals=0", Way::kAnyNearest},
    {"float exponent=8 mantissa=7 overflow=saturate", Way::kAnyNearest},
    {"float exponent=8 mantissa=7 variant=fnuz", Way::kAnyNearest},
    {"float exponent=7 mantissa=23", Way::kAnyNearest},
    {"fixed word=24 fraction=3", Way::kAnyNearest},
    {"fixed word=8 fraction=4 rounding=zero", Way::kAnyZero},
    {"float exponent=8 mantissa=0 rounding=zero", Way::kAnyZero},
    {"float exponent=8 mantissa=0 variant=cpd", Way::kAnyCpd},
    {"float exponent=6 mantissa=22 variant=cpd", Way::kAnyCpd},
};

// Row-major.
struct Operand {
  size_t rows, columns;
  std::vector<float> x;

  Operand(size_t r, size_t c) : rows(r), columns(c), x(r * c) {}
  float& at(size_t r, size_t c) { return x[r * columns + c]; }
  float at(size_t r, size_t c) const { return x[r * columns + c]; }
  Matrix<const float> read() const { return {x.data(), static_cast<ptrdiff_t>(columns), 1}; }
};

Operand product(const Sums& sums, const Operand& a, const Operand& b) {
  Operand y(a.rows, b.columns);
  const Shape shape{a.rows, a.columns, b.columns};
  gemm::Multiplier multiplier(sums, shape);
  // Tiles by themselves, the last one first.
  const Matrix<float> to{y.x.data(), static_cast<ptrdiff_t>(b.columns), 1};
  for (size_t tile = y.x.empty() ? 0 : shape.tiles(); tile-- > 0;) {
    multiplier.run(a.read(), b.read(), tile, 1, to);
  }
  return y;
}

struct Sum {
  const Accumulated& how;
  bool kahan;
  float s = 0, c = 0;

  void add(float number) {
    if (!kahan) {
      s = how.cast(s + number);
      return;
    }
    const float y = how.cast(number - c), t = how.cast(s + y);
    c = how.cast(how.cast(t - s) - y);
    s = t;
  }
};

float expected_at(const Accumulated& how, bool kahan, size_t block, const Operand& a,
                  const Operand& b, size_t row, size_t column) {
  Sum terms{how, kahan}, blocks{how, kahan};
  for (size_t k = 0; k < a.columns; ++k) {
    terms.add(how.cast(a.at(row, k) * b.at(k, column)));
    if (block > 0 && ((k + 1) % block == 0 || k + 1 == a.columns)) {
      blocks.add(terms.s);
      terms.s = terms.c = 0;
    }
  }
  return block > 0 ? blocks.s : terms.s;
}

void check_product(const Accumulated& how, bool kahan, size_t block, const Operand& a,
                   const Operand& b) {
  const Operand y = product(gemm::sums_of(how.kind, how.rule, kahan, block), a, b);
  for (size_t r = 0; r < a.rows; ++r) {
    for (size_t c = 0; c < b.columns; ++c) {
      const float wanted = expected_at(how, kahan, block, a, b, r, c);
      CHECK(as_bits(y.at(r, c)) == as_bits(wanted), how.text, " kahan ", kahan, " block ", block,
            " shape ", a.rows, " ", a.columns, " ", b.columns, ": ", r, ", ", c, " is ", y.at(r, c),
            ", allowed: ", wanted);
    }
  }
}

// Gaussian values by powers of two; with `wild`, some very large ones, infinities and NaN.
Operand some_values(Random& random, size_t rows, size_t columns, int reach, bool wild) {
  Operand some(rows, columns);
  for (float& x : some.x) {
    const auto power = static_cast<int>(random(2 * static_cast<unsigned>(reach) + 1)) - reach;
    x = static_cast<float>(std::ldexp(random.signed_unit(), power));
    if (random(40) == 0) x = 0;
    if (!wild) continue;
    const unsigned what = random(120);
    if (what == 0) x = INFINITY;
    if (what == 1) x = -INFINITY;
    if (what == 2) x = std::nanf("");
    if (what < 8) x = std::copysign(1e30f, x);
  }
  return some;
}

// Every so manyth of the tame floats, and the neighbours of each number's last bits.
std::vector<float> tame_values(const Rule<float>& rule) {
  std::vector<float> x;
  const uint32_t step = 0x59000000u / 500;
  for (uint32_t bits = 0; bits < 0x59000000u; bits += step) {
    const uint32_t grid = bits & ~rule.cut, middle = grid + rule.half + rule.odd;
    for (uint32_t one : {bits, grid, middle - 1, middle, middle + 1}) {
      if (one < 0x59000000u) x.push_back(from_bits(one | (x.size() % 2 == 0 ? 0 : 0x80000000u)));
    }
  }
  return x;
}

}  // namespace

TEST(codec_gemm_ways_are_the_casts) {
  std::set<Way> ways;
  for (const Chosen& chosen : kChosen) {
    const Accumulated how(chosen.text);
    const Sums sums = gemm::sums_of(how.kind, how.rule, false, 0);
    CHECK(sums.way == chosen.way, chosen.text, " takes the way ", static_cast<int>(sums.way));
    ways.insert(sums.way);
    const std::vector<float> x = tame_values(how.rule);
    Operand a(x.size(), 1), b(1, 6);
    a.x = x;
    b.x = {1, 0x1p-30f, 1.25f, 0x1p50f, 0x1p-60f, -3};
    check_product(how, false, 0, a, b);
  }
  CHECK(ways.size() == gemm::kWays - 1, "some way is of no format here");
}

TEST(codec_gemm_sums_are_made_term_by_term) {
  Random random(5);
  for (const Chosen& chosen : kChosen) {
    const Accumulated how(chosen.text);
    for (const auto& [rows, depth, columns] : {Shape{1, 33, 17}, {5, 21, 16}, {6, 130, 3}}) {
      for (int reach : {1, 9}) {
        for (bool wild : {false, true}) {
          const Operand a = some_values(random, rows, depth, reach, wild);
          const Operand b = some_values(random, depth, columns, reach, wild);
          for (bool kahan : {false, true}) {
            for (size_t block : {0, 1, 8, 100}) check_product(how, kahan, block, a, b);
          }
        }
      }
    }
  }
}

TEST(codec_gemm_tiles_have_all_shapes) {
  Random random(6);
  const Accumulated how("float exponent=4 mantissa=3");
  for (size_t rows : {0, 1, 2, 3, 4, 5, 63, 64, 65, 69}) {
    for (size_t columns : {0, 1, 15, 16, 17, 64, 65, 81}) {
      for (size_t depth : {0, 1, 5}) {
        const Operand a = some_values(random, rows, depth, 2, false);
        const Operand b = some_values(random, depth, columns, 2, false);
        check_product(how, rows % 2 == 0, 0, a, b);
      }
    }
  }
}

TEST(codec_gemm_sums_go_on_after_some_terms) {
  Random random(8);
  for (const char* text : {"float exponent=5 mantissa=10", "float exponent=4 mantissa=3 variant=fn",
                           "fixed word=8 fraction=4", "float exponent=5 mantissa=2 rounding=zero",
                           "float exponent=4 mantissa=3 variant=cpd"}) {
    const Accumulated how(text);
    for (size_t depth : {511, 512, 513, 1025}) {
      Operand a = some_values(random, 6, depth, 2, false);
      const Operand b = some_values(random, depth, 18, 2, false);
      // The first terms of these rows are infinite, NaN, very large: later ones are tame.
      a.at(0, 3) = INFINITY, a.at(1, 5) = std::nanf(""), a.at(5, 7) = -1e30f;
      for (size_t block : {0, 64, 100}) check_product(how, depth % 2 == 0, block, a, b);
    }
  }
}

namespace {

double truncated(double x, double step) { return std::trunc(x / step) * step; }

float hopper_at(const Operand& a, const Operand& b, size_t row, size_t column) {
  float total = 0;
  double accumulator = 0;
  for (size_t k = 0; k < a.columns; k += 32) {
    std::vector<double> terms{accumulator};
    for (size_t i = k; i < a.columns && i < k + 32; ++i) {
      terms.push_back(static_cast<double>(a.at(row, i) * b.at(i, column)));
    }
    double most = 0, infinite = 0;
    for (double term : terms) {
      if (!std::isfinite(term)) infinite += term;
      most = std::fmax(most, std::fabs(term));
    }
    if (!(infinite == 0)) {
      accumulator = infinite;
    } else {
      const int exponent = most == 0 ? -113 : std::max(std::ilogb(most), -113);
      double sum = 0;
      for (double term : terms) sum += truncated(term, std::ldexp(1.0, exponent - 13));
      if (sum != 0) sum = truncated(sum, std::ldexp(1.0, std::max(std::ilogb(sum), exponent) - 13));
      accumulator = static_cast<double>(static_cast<float>(sum));
    }
    if (k % 128 == 96 || k + 32 >= a.columns) {
      total += static_cast<float>(accumulator);
      accumulator = 0;
    }
  }
  return std::isnan(total) ? from_bits(kNan) : total;
}

}  // namespace

TEST(codec_gemm_hopper_sums_have_fourteen_bits) {
  Random random(7);
  for (const auto& [rows, depth, columns] :
       {Shape{1, 1, 1}, {4, 31, 16}, {5, 33, 17}, {2, 0, 3}, {3, 129, 20}, {6, 700, 5}}) {
    for (int reach : {0, 4, 20, 70}) {
      for (bool wild : {false, true}) {
        const Operand a = some_values(random, rows, depth, reach, wild);
        const Operand b = some_values(random, depth, columns, reach, wild);
        const Operand y = product(gemm::hopper_sums(), a, b);
        for (size_t r = 0; r < rows; ++r) {
          for (size_t c = 0; c < columns; ++c) {
            const float wanted = hopper_at(a, b, r, c);
            CHECK(as_bits(y.at(r, c)) == as_bits(wanted), "depth ", depth, " reach ", reach, ": ",
                  r, ", ", c, " is ", y.at(r, c), ", allowed: ", wanted);
          }
        }
      }
    }
  }
}

}  // namespace cgx::native
