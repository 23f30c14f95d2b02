#include "codec/bounded/encode/find_own.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "codec/bounded/bytes.h"
#include "codec/bounded/encode/repeats.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {
namespace {

// A palette is looked for where a sample repeats its values so often.
constexpr size_t kRepeated = 3;
// Of 16 bits, where it has so many times its different values: they meet by accident.
constexpr size_t kRepeatedShort = 4;
// Nearly all values of a sample are the same where at most one in so many is not; and values are there
// again where at least one in so many is.
constexpr size_t kMostlyOf = 64, kAgainOf = 40;
// Multiples are looked for where at most one value of a sample in so many is not finite.
constexpr size_t kMissingOf = 20;
// Multiples: the greatest, of float32 and of float64. Beyond, all numbers of the type are multiples.
constexpr double kMostOfFloat = 0x1p22, kMostOfDouble = 0x1p50;
// The greatest in a row with a unit of its own: quantized values are few.
constexpr double kMostInRow = 4096;
// Rows of a length that a unit of their own is not too much for.
constexpr uint32_t kLeastRow = 32;

template <typename T>
std::vector<T> values_of(const std::byte* x, size_t n) {
  std::vector<T> values(n);
  std::memcpy(values.data(), x, n * sizeof(T));
  return values;
}

template <typename T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Whether all values are multiples, and none of them too great a one.
template <typename T>
bool are_multiples(std::span<const T> values, const Multiples& unit, double most) {
  return std::all_of(values.begin(), values.end(), [&](T x) {
    const double value = static_cast<double>(x);
    const double word =
        std::nearbyint(unit.quotients ? value * unit.units[0] : value / unit.units[0]);
    return std::fabs(word) <= most && same_bits(unit.value_of<T>(word, unit.units[0]), x);
  });
}

// The lowest bit that a finite number has, as a number; 0 of 0.
double lowest_bit(double x) {
  if (x == 0) return 0;
  int exponent;
  const double mantissa = std::frexp(std::fabs(x), &exponent);
  auto whole = static_cast<uint64_t>(std::ldexp(mantissa, 53));
  return std::ldexp(static_cast<double>(whole & (~whole + 1)), exponent - 53);
}

// One unit for these values, which are finite: a power of 2, or a decimal place.
template <typename T>
std::optional<Multiples> one_unit(std::span<const T> values) {
  constexpr double kMost = sizeof(T) == 4 ? kMostOfFloat : kMostOfDouble;
  double least = INFINITY, greatest = 0;
  for (const T x : values) {
    const double bit = lowest_bit(static_cast<double>(x));
    if (bit > 0) least = std::min(least, bit);
    greatest = std::max(greatest, std::fabs(static_cast<double>(x)));
  }
  if (!std::isfinite(least)) return std::nullopt;
  Multiples binary{false, 0, 0, {least}};
  if (greatest / least <= kMost && are_multiples<T>(values, binary, kMost)) return binary;
  for (double places = 10; places <= 1e8; places *= 10) {
    const Multiples decimal{true, 0, 0, {places}};
    if (are_multiples<T>(values, decimal, kMost)) return decimal;
    if (greatest * places > kMost) break;
  }
  return std::nullopt;
}

// A unit for a row of products. The least difference of two values is a small multiple of it.
template <typename T>
double unit_of_row(std::span<const T> values) {
  // Before they are sorted: NaN has no place in an order.
  if (!std::all_of(values.begin(), values.end(), [](T x) { return std::isfinite(x); })) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  for (double& x : sorted) x = std::fabs(x);
  std::sort(sorted.begin(), sorted.end());
  const double greatest = sorted.back();
  if (greatest == 0) return 1;
  double difference = sorted.front() > 0 ? sorted.front() : INFINITY;
  for (size_t i = 1; i < sorted.size(); ++i) {
    const double step = sorted[i] - sorted[i - 1];
    // Equal multiples, rounded alike, are equal.
    if (step > 0) difference = std::min(difference, step);
  }
  for (int times = 1; times <= 4; ++times) {
    const double about = difference / times;
    const double count = std::nearbyint(greatest / about);
    if (!(count >= 1 && count <= kMostInRow)) break;
    // The unit was a number of the type; the greatest product says it to a few of its last places.
    const T near = static_cast<T>(greatest / count);
    for (const T unit : {near, std::nextafter(near, T{0}),
                         std::nextafter(near, std::numeric_limits<T>::infinity())}) {
      const Multiples products{false, 0, 0, {static_cast<double>(unit)}};
      if (unit > 0 && are_multiples<T>(values, products, kMostInRow)) {
        return static_cast<double>(unit);
      }
    }
  }
  return 0;
}

template <typename T>
std::optional<Multiples> row_multiples_of(const std::byte* x, size_t n,
                                          const field::Geometry& geometry) {
  const std::vector<T> values = values_of<T>(x, n);
  Multiples out{false, geometry.width, geometry.start % geometry.width, {}};
  for (size_t at = 0; at < n;) {
    const size_t in_row = (out.start + at) % out.width;
    const size_t count = std::min<size_t>(n - at, out.width - in_row);
    const double unit = unit_of_row<T>(std::span(values).subspan(at, count));
    if (unit == 0) return std::nullopt;
    out.units.push_back(unit);
    at += count;
  }
  return out;
}

template <typename T>
void suggest_multiples(const std::vector<std::vector<std::byte>>& runs, Suggested& out) {
  std::vector<T> some;
  size_t rows = 0, looked = 0, all = 0;
  for (const auto& run : runs) {
    const std::vector<T> values = values_of<T>(run.data(), run.size() / sizeof(T));
    all += values.size();
    std::copy_if(values.begin(), values.end(), std::back_inserter(some),
                 [](T x) { return std::isfinite(x); });
    if (looked == 8) continue;
    ++looked;
    // So many values lie in two rows at most, and then one of their halves in one.
    const auto run_of = std::span<const T>(values).first(std::min<size_t>(values.size(), kRun));
    const auto half = (run_of.size() + 1) / 2;
    const auto has_unit = [](std::span<const T> x) { return !x.empty() && unit_of_row<T>(x) > 0; };
    const bool known = has_unit(run_of.first(half)) || has_unit(run_of.subspan(half));
    rows += known ? 1 : 0;
  }
  // Those that are missing become special values, unless they are too many.
  if (some.size() * kMissingOf < all * (kMissingOf - 1)) some.clear();
  // A few values say what all others must be, too.
  constexpr size_t kFew = 24;
  std::vector<T> few;
  for (size_t i = 0; i < some.size(); i += some.size() / kFew + 1) few.push_back(some[i]);
  if (one_unit<T>(few)) out.multiples = one_unit<T>(some);
  out.rows = !out.multiples && looked > 0 && 2 * rows >= looked;
}

}  // namespace

Suggested suggested_by(DType element, bool lossless,
                       const std::function<void(const Look&)>& each_run) {
  Suggested out;
  const size_t bytes = size_of(element);
  std::vector<std::vector<std::byte>> runs;
  std::vector<uint64_t> bits;
  each_run([&](const std::byte* x, size_t n) {
    runs.emplace_back(x, x + n * bytes);
    append_bits(element, x, n, bits);
  });
  const Tally tally = tally_of(bits);
  const size_t distinct = tally.distinct;
  const size_t count = bits.size();
  out.most = tally.most;
  out.mostly = count >= 64 && tally.count * kMostlyOf >= count * (kMostlyOf - 1);
  // Floating-point numbers hardly meet by accident where they have 32 bits.
  // Within a bound, one value that is there everywhere, a fill, says nothing of the others.
  const size_t others = lossless ? count : count - tally.count;
  const size_t found = lossless ? count - distinct : others - (distinct - 1);
  out.again = is_floating(element) && bytes >= 4 && others > 0 &&
              (found * kAgainOf >= others || (lossless && bytes == 8 && bits_repeat(bits)));
  out.palette = count >= 64 && (bytes > 2    ? distinct * kRepeated < count * 2
                                : bytes == 2 ? distinct * kRepeatedShort < count
                                             : false);
  if (element == DType::kFloat32) suggest_multiples<float>(runs, out);
  if (element == DType::kFloat64) suggest_multiples<double>(runs, out);
  return out;
}

bool PaletteIndex::make(DType element, const std::byte* x, size_t n) {
  constexpr size_t kSlots = size_t{1} << kSlotBits;
  bits_.assign(kSlots, 0);
  numbers_.assign(kSlots, -1);
  palette_.places.clear();
  for (size_t i = 0; i < n; ++i) {
    const uint64_t bits = bits_at(element, x, i);
    size_t slot = first_slot(bits);
    while (numbers_[slot] >= 0 && bits_[slot] != bits) slot = (slot + 1) % kSlots;
    if (numbers_[slot] >= 0) continue;
    if (palette_.places.size() == Palette::kMost) return false;
    numbers_[slot] = 0;
    bits_[slot] = bits;
    palette_.places.push_back(place_among_all(element, bits));
  }
  std::sort(palette_.places.begin(), palette_.places.end());
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (numbers_[slot] < 0) continue;
    numbers_[slot] = static_cast<int32_t>(palette_.number_of(element, bits_[slot]));
  }
  return true;
}

int32_t PaletteIndex::number_of(uint64_t bits) const {
  constexpr size_t kSlots = size_t{1} << kSlotBits;
  size_t slot = first_slot(bits);
  while (numbers_[slot] >= 0 && bits_[slot] != bits) slot = (slot + 1) % kSlots;
  return numbers_[slot];
}

std::optional<Multiples> row_multiples(DType element, const std::byte* x, size_t n,
                                       const field::Geometry& geometry) {
  if (geometry.width < kLeastRow || geometry.height < 2) return std::nullopt;
  if (element == DType::kFloat32) return row_multiples_of<float>(x, n, geometry);
  if (element == DType::kFloat64) return row_multiples_of<double>(x, n, geometry);
  return std::nullopt;
}

}  // namespace cgx::bounded
