#include "codec/bounded/maps/curve.h"

#include <array>
#include <cmath>

namespace cgx::bounded {
namespace {

constexpr std::array<double, kCurveNodes> kPlaces{32, 96, 160, 224};

// Value at place t of the polynomial of degree d that is orthogonal, over places 0 ... 255, to those
// of lower degree (Gram's recurrence, centred), and its squared norm.
double gram(int degree, double t) {
  const double x = t - 127.5, n = kCurveRun;
  double before = 0, now = 1;
  for (int d = 0; d < degree; ++d) {
    const double next =
        x * now - (d == 0 ? 0 : d * d * (n * n - d * d) / (4.0 * (4.0 * d * d - 1))) * before;
    before = now;
    now = next;
  }
  return now;
}

CurveTables make_tables() {
  CurveTables tables{};
  for (size_t k = 0; k < kCurveNodes; ++k) {
    for (size_t i = 0; i < kCurveRun; ++i) {
      double above = 1, below = 1;
      for (size_t j = 0; j < kCurveNodes; ++j) {
        if (j == k) continue;
        above *= static_cast<double>(i) - kPlaces[j];
        below *= kPlaces[k] - kPlaces[j];
      }
      tables.draw[k][i] = above / below / kNodeUnit;  // whole numbers below 2^53, divided once
    }
  }
  for (int degree = 0; degree < 4; ++degree) {
    double norm = 0;
    for (size_t i = 0; i < kCurveRun; ++i) {
      const double value = gram(degree, static_cast<double>(i));
      norm += value * value;
    }
    for (size_t k = 0; k < kCurveNodes; ++k) {
      for (size_t i = 0; i < kCurveRun; ++i) {
        tables.fit[k][i] +=
            gram(degree, kPlaces[k]) * gram(degree, static_cast<double>(i)) / norm * kNodeUnit;
      }
    }
  }
  return tables;
}

size_t nodes_of(size_t n) { return (n + kCurveRun - 1) / kCurveRun * kCurveNodes; }

}  // namespace

const CurveTables& curve_tables() {
  static const CurveTables made = make_tables();
  return made;
}

size_t curve_bytes(size_t n) { return nodes_of(n) * 4; }

bool fit_curve(const double* positions, size_t n, int32_t* nodes) {
  std::array<double, kCurveNodes> found{};
  if (n == kCurveRun) {
    const auto& fit = curve_tables().fit;
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < kCurveNodes; ++k) found[k] += fit[k][i] * positions[i];
    }
  } else {
    // Too few for a cubic: their mean.
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += positions[i];
    found.fill(sum / static_cast<double>(n) * kNodeUnit);
  }
  for (size_t k = 0; k < kCurveNodes; ++k) {
    if (!(std::fabs(found[k]) < kMostNode)) return false;
    nodes[k] = static_cast<int32_t>(std::nearbyint(found[k]));
  }
  return true;
}

void draw_curve(const int32_t* nodes, size_t n, double* out) {
  const auto& draw = curve_tables().draw;
  const double a = nodes[0], b = nodes[1], c = nodes[2], d = nodes[3];
  for (size_t i = 0; i < n; ++i) {
    out[i] = ((draw[0][i] * a + draw[1][i] * b) + draw[2][i] * c) + draw[3][i] * d;
  }
}

void write_nodes(const int32_t* nodes, size_t n, std::byte* out) {
  const size_t count = nodes_of(n);
  uint32_t before = 0, slope = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t node = static_cast<uint32_t>(nodes[i]);
    const uint32_t step = node - before;
    const uint32_t bend = step - slope;
    const uint32_t folded = (bend << 1) ^ (0 - (bend >> 31));
    for (size_t byte = 0; byte < 4; ++byte) {
      out[byte * count + i] = static_cast<std::byte>(folded >> (8 * byte));
    }
    slope = step;
    before = node;
  }
}

bool read_nodes(const std::byte* in, size_t n, int32_t* nodes) {
  const size_t count = nodes_of(n);
  uint32_t before = 0, slope = 0;
  constexpr auto kMost = static_cast<uint32_t>(kMostNode);
  bool fits = true;
  for (size_t i = 0; i < count; ++i) {
    uint32_t folded = 0;
    for (size_t byte = 0; byte < 4; ++byte) {
      folded |= static_cast<uint32_t>(in[byte * count + i]) << (8 * byte);
    }
    slope += (folded >> 1) ^ (0 - (folded & 1));
    before += slope;
    nodes[i] = static_cast<int32_t>(before);
    fits = fits && before + kMost <= 2 * kMost;
  }
  return fits;
}

}  // namespace cgx::bounded
