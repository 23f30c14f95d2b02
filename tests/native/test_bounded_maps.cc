// The maps of the error-bounded compressor between values and words: each by its definition.
#include <limits>
#include <numeric>

#include "bounded_values.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/lattice.h"
#include "codec/bounded/maps/log_grid.h"
#include "codec/bounded/maps/order.h"

namespace cgx::native {
namespace {

using bounded::Lattice;
using bounded::LogGrid;
using bounded::Order;

template <typename Word>
void check_order(DType element, const Block& x, const Order& order) {
  const size_t bytes = size_of(element), n = x.size() / bytes;
  std::vector<Word> words(n);
  bounded::to_order(element, x.data(), n, order, words.data());
  Block y(x.size());
  CHECK(bounded::from_order(element, words.data(), n, order, y.data()));
  for (size_t i = 0; i < n; ++i) {
    const uint64_t a = raw_bits(element, x.data() + i * bytes),
                   b = raw_bits(element, y.data() + i * bytes);
    CHECK(a == b, "element ", static_cast<int>(element), ", shift ", order.shift, ", origin ",
          order.origin, ": bits ", a, " came back as ", b);
  }
}

void check_order(DType element, const Block& x, int shift) {
  const int64_t last = bounded::last_origin(element, shift);
  CHECK(last >= 0);
  for (const int64_t origin : {int64_t{0}, std::min<int64_t>(1, last), last / 3, last}) {
    if (size_of(element) == 8) {
      check_order<int64_t>(element, x, {shift, origin});
    } else {
      check_order<int32_t>(element, x, {shift, origin});
    }
  }
  const int64_t fitted = bounded::origin_for(element, x.data(), x.size() / size_of(element), shift);
  CHECK(fitted >= 0 && fitted <= last, "origin ", fitted, ", the last is ", last);
}

}  // namespace

// All bits whose low ones are 0 come back, so no two of them share a word.
TEST(bounded_order_all_short_values) {
  for (const DType element : {DType::kFloat16, DType::kBFloat16, DType::kInt16, DType::kUInt16,
                              DType::kInt8, DType::kUInt8}) {
    const size_t bytes = size_of(element);
    const int bits = static_cast<int>(8 * bytes);
    for (int shift = 0; shift < bits; ++shift) {
      Block x;
      for (uint32_t k = 0; k < (1u << (bits - shift)); ++k) {
        const uint32_t value = k << shift;
        x.resize(x.size() + bytes);
        std::memcpy(x.data() + x.size() - bytes, &value, bytes);
      }
      check_order(element, x, shift);
    }
  }
}

TEST(bounded_order_long_values) {
  Random random(7);
  for (const DType element :
       {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kUInt32, DType::kInt64}) {
    const size_t bytes = size_of(element);
    for (int shift = 0; shift < static_cast<int>(8 * bytes); ++shift) {
      // Random ones, and what differs from the ends by little.
      Block x(600 * bytes);
      for (size_t i = 0; i < 600; ++i) {
        uint64_t bits = random();
        if (i % 4 == 1) bits = random(5) - 2;
        if (i % 4 == 2) bits = (uint64_t{1} << (8 * bytes - 1)) + random(5) - 2;
        bits = bits >> shift << shift;
        std::memcpy(x.data() + i * bytes, &bits, bytes);
      }
      check_order(element, x, shift);
    }
  }
}

// Neighbouring magnitudes have neighbouring words: what makes differences short.
TEST(bounded_order_keeps_the_order) {
  std::vector<float> x;
  for (float value = -3; value <= 3; value += 0.01f) x.push_back(value);
  std::vector<int32_t> words(x.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(x.data());
  const int64_t origin = bounded::origin_for(DType::kFloat32, bytes, x.size(), 0);
  bounded::to_order(DType::kFloat32, bytes, x.size(), {0, origin}, words.data());
  for (size_t i = 1; i < x.size(); ++i) CHECK(words[i] > words[i - 1], "value ", x[i]);
  CHECK(words.back() - words.front() < 1 << 29, "far apart");
}

TEST(bounded_lattice_all_values) {
  for (const DType element : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<std::pair<double, bool>> bounds;
    for (const double bound : {5e-324, 1e-40, 0x1p-133, 1e-9, 0x1p-25, 0x1p-24, 1e-4, 1e-3, 0x1p-10,
                               0.1, 0.5, 1.0, 7.7, 100.0, 65504.0, 1e6, 1e38, 1e300}) {
      bounds.emplace_back(bound, true);
    }
    for (const double bound : {5e-324, 1e-12, 0x1p-12, 0x1p-11, 4.9e-4, 1e-3, 0x1p-9, 0x1p-8, 0.01,
                               0.1, 0.3, 0.5, 0.99, 1 - 0x1p-53}) {
      bounds.emplace_back(bound, false);
    }
    std::vector<uint16_t> all(65536), back(1);
    std::iota(all.begin(), all.end(), uint16_t{0});
    std::vector<int32_t> words(65536);
    for (size_t turn = 0; turn < 2 * bounds.size(); ++turn) {
      const auto& [bound, absolute] = bounds[turn / 2];
      const bool subnormal = turn % 2 == 0;  // from version 2 of the format on
      const Lattice lattice(element, bound, absolute, subnormal);
      CHECK(lattice.to_words(all.data(), all.size(), words.data()));
      int32_t before = -1;
      const BoundKind kind = absolute ? BoundKind::kAbsolute : BoundKind::kPointwise;
      const auto check = [&](bool holds, uint32_t bits, const std::string& wrong = "") {
        CHECK(holds, "element ", static_cast<int>(element), ", bound ", bound, ", bits ", bits, " ",
              wrong);
      };
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        const double x = float_value(element, bits);
        const bool special =
            !std::isfinite(x) || bits == 0x8000 || (!subnormal && is_subnormal(element, x));
        check((words[bits] == Lattice::kNone) == special, bits);
        if (special) continue;
        check(std::abs(words[bits]) <= lattice.most(), bits);
        check(words[bits & 0x7fff] == (bits < 0x8000 ? words[bits] : -words[bits]), bits);
        lattice.from_words(&words[bits], 1, back.data());
        const auto wrong = broken_promise(element, kind, bound, bits, back[0]);
        if (wrong) check(false, bits, *wrong);
        if (bits < 0x8000) {  // groups of neighbours, none left out
          check(words[bits] == before || words[bits] == before + 1, bits);
          before = words[bits];
        }
      }
      CHECK(before == lattice.most());
      // Every group is named by one of its own values.
      for (int32_t word = 0; word <= lattice.most(); ++word) {
        lattice.from_words(&word, 1, back.data());
        CHECK(words[back[0]] == word, "bound ", bound, ", group ", word);
      }
    }
  }
}

TEST(bounded_log_grid_all_exponents) {
  // Mantissas at the borders of up to 16 segments, of binades, and between.
  std::vector<uint32_t> mantissas;
  for (uint32_t border = 0; border <= 16; ++border) {
    for (int near = -2; near <= 2; ++near) {
      mantissas.push_back(((border << 19) + static_cast<uint32_t>(near)) & 0x7fffff);
    }
  }
  std::sort(mantissas.begin(), mantissas.end());
  for (const double bound :
       {1 - 0x1p-53, 0.9, 0.5, 0.3, 0.1, 0.03, 1e-2, 1e-3, 1e-5, 1e-7, 1e-11}) {
    const LogGrid grid(bound);
    CHECK(grid.codes() > 0);
    // Close to what a logarithm would need.
    const double ideal = std::log(2.0) / std::log((1 + bound) / (1 - bound));
    CHECK(static_cast<double>(grid.codes()) <= 1.025 * ideal + 10, "bound ", bound, ": ",
          grid.codes(), " codes, ideal ", ideal);
    for (const int64_t origin : {-126, -3, 5}) {
      int64_t before = 0;
      for (int exponent = static_cast<int>(origin); exponent <= 127; ++exponent) {
        for (const uint32_t mantissa : mantissas) {
          const float x = bits_float((static_cast<uint32_t>(exponent + 127) << 23) | mantissa);
          const double value = x;
          const auto [word, back] = grid.place(value, origin);
          CHECK(grid.value(word, origin) == back, "bound ", bound, ", ", x);
          CHECK(word >= before && word >= 1, "bound ", bound, ", ", x, ": word ", word);
          before = word;
          CHECK(word <= grid.most(origin) && grid.place(-value, origin).word == -word);
          CHECK(grid.value(-word, origin) == -back);
          CHECK(grid.place(back, origin).word == word, "bound ", bound, ", ", x);
          // But for the rounding of `back`, which the encoder looks at.
          CHECK(std::fabs(value - back) <= (bound + 0x1p-51) * value, "bound ", bound, ": ", x,
                " came back as ", back);
        }
      }
    }
  }
}

// Also subnormal numbers, of float64: each is a whole number of the least of them.
TEST(bounded_log_grid_least_numbers) {
  Random random(8);
  for (const double bound : {0.9, 0.5, 0.1, 0.01, 1e-5, 1e-11}) {
    const LogGrid grid(bound);
    for (int round = 0; round < 3000; ++round) {
      const auto units = std::max<uint64_t>(random() >> random(12) >> 10, 1);
      const double x = __builtin_bit_cast(double, units);
      for (const int64_t origin : {int64_t{-1074}, int64_t{bounded::exponent_of(x)}}) {
        const auto [word, back] = grid.place(x, origin);
        CHECK(word >= 1 && grid.value(word, origin) == back, bound, ", ", units);
        const auto [other, negative] = grid.place(-x, origin);
        CHECK(other == -word && negative == -back && grid.value(-word, origin) == -back);
        // As close as the number of units lets it be: half of one is rounded away.
        const double off = std::fabs(std::ldexp(x, 200) - std::ldexp(back, 200));
        CHECK(off <= (bound + 0x1p-51) * std::ldexp(x, 200) + 0x1p-875, bound, ", ", units);
      }
      CHECK(grid.place(x, bounded::exponent_of(x) + 1).word == 0);
    }
    CHECK(bounded::exponent_of(5e-324) == -1074 && bounded::exponent_of(0x1p-1023) == -1023);
  }
}

// Three units for five are off by 40 %, although 0.31 times 5 units is rounded to 2 units.
TEST(bounded_pointwise_bound_of_least_numbers) {
  const double unit = 5e-324;
  CHECK(0.31 * (5 * unit) == 2 * unit);
  CHECK(!bounded::is_within(5 * unit, 3 * unit, 0.31) &&
        bounded::is_within(5 * unit, 4 * unit, 0.31));
  CHECK(bounded::is_within(-5 * unit, -4 * unit, 0.2) && !bounded::is_within(unit, 0, 0.999));
  CHECK(bounded::is_within(1, 0.5, 0.5) && !bounded::is_within(1, 0.49, 0.5));
  CHECK(!bounded::is_within(1e308, INFINITY, 0.5));
}

TEST(bounded_log_grid_refuses) {
  CHECK(LogGrid(1e-13).codes() == 0 && LogGrid(5e-324).codes() == 0);  // too many for a word
  const LogGrid grid(0.01);
  const int64_t last = (1023 + 1022 + 1) * grid.codes();  // the greatest number's
  CHECK(grid.place(std::numeric_limits<double>::max(), -1022).word == last);
  CHECK(grid.most(-1022) == last && std::isfinite(grid.value(last, -1022)));
  CHECK(grid.most(1023) == grid.codes() && std::isfinite(grid.value(grid.most(1023), 1023)));
}

TEST(bounded_curve_nodes_come_back) {
  Random random(5);
  for (const size_t n :
       {size_t{1}, size_t{255}, size_t{256}, size_t{257}, size_t{5000}, bounded::kBlockValues}) {
    const size_t count = (n + bounded::kCurveRun - 1) / bounded::kCurveRun * bounded::kCurveNodes;
    CHECK(bounded::curve_bytes(n) == 4 * count);
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<int32_t> nodes(count), back(count);
      constexpr int32_t kMost = 1 << 30;
      for (int32_t& node : nodes) {
        node = static_cast<int32_t>(random(2 * uint64_t{kMost} + 1)) - kMost;
        if (kind == 1) node = random(2) == 0 ? -kMost : kMost;
        if (kind == 2) node %= 100;
      }
      const auto bytes = std::make_unique<std::byte[]>(4 * count);
      bounded::write_nodes(nodes.data(), n, bytes.get());
      CHECK(bounded::read_nodes(bytes.get(), n, back.data()));
      CHECK(back == nodes, "n ", n);
      for (const int32_t beyond : {kMost + 1, -kMost - 1, INT32_MAX, INT32_MIN}) {
        nodes[count / 2] = beyond;
        bounded::write_nodes(nodes.data(), n, bytes.get());
        CHECK(!bounded::read_nodes(bytes.get(), n, back.data()), "n ", n, ", ", beyond);
      }
    }
  }
}

TEST(bounded_curve_fits_cubics) {
  std::vector<double> positions(bounded::kCurveRun), drawn(bounded::kCurveRun);
  int32_t nodes[bounded::kCurveNodes];
  for (const double a : {0.0, 1e3, -1e6}) {
    for (size_t i = 0; i < positions.size(); ++i) {
      const double t = static_cast<double>(i) / 256;
      positions[i] = a + 300 * t - 5000 * t * t + 4000 * t * t * t;
    }
    CHECK(bounded::fit_curve(positions.data(), positions.size(), nodes));
    bounded::draw_curve(nodes, positions.size(), drawn.data());
    for (size_t i = 0; i < positions.size(); ++i) {
      // Nodes are rounded to 64ths; at the ends their polynomials add up to less than 5 of them.
      CHECK(std::fabs(drawn[i] - positions[i]) < 5.0 / 128, "place ", i);
    }
  }
  // Fewer than a run: the mean.
  CHECK(bounded::fit_curve(positions.data(), 3, nodes));
  const double mean = (positions[0] + positions[1] + positions[2]) / 3;
  for (const int32_t node : nodes) CHECK(std::fabs(node / 64.0 - mean) <= 1.0 / 128);
  for (const double bad : {double{NAN}, double{INFINITY}, 1e30}) {
    positions[100] = bad;
    CHECK(!bounded::fit_curve(positions.data(), positions.size(), nodes));
  }
}

}  // namespace cgx::native
