// Blocks of fields: what their numbers are, where holes are, and whether a field is worth it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_mode.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/encode/encoder.h"
#include "codec/bounded/encode/repeats.h"
#include "codec/bounded/field/coded.h"
#include "codec/bounded/field/promise.h"
#include "codec/bounded/maps/lattice.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {
namespace {

// A field this much shorter than what the sample says of the other way is taken at once.
constexpr double kClearly = 0.9, kHeaps = 0.7;
// Errors of a field this much shorter, in bits, are no accident.
constexpr double kSure = 0.3;
// Words of so many bits take about as many as a field of one row, unless its errors are so much shorter.
constexpr double kLong = 10, kMuch = 1;
// Whole numbers up to these are predicted in float32, and in float64.
constexpr int64_t kMostNarrow = int64_t{1} << 20, kMostWide = int64_t{1} << 49;
// A number that fills holes: a share of the sample has it, ...
constexpr size_t kFillOf = 50;
// ... and it lies by so many ranges of the others beside them.
constexpr double kFarAway = 1;

}  // namespace

// The bits of a finite number that many values have and that lies far from all others; none: the bits
// of a number that is not finite.
uint64_t Encoder::common_fill() const {
  const DType element = maps_->element();
  const uint64_t none = layout_of(element).infinity;
  std::vector<uint64_t> sample;
  look_at_sample([&](const std::byte* x, size_t n) { append_bits(element, x, n, sample); });
  const FloatLayout layout = layout_of(element);
  std::erase_if(sample, [&](uint64_t bits) { return is_special(layout, bits); });
  const Tally tally = tally_of(sample);
  const uint64_t fill = tally.most;
  if (tally.count <= std::max<size_t>(sample.size() / kFillOf, 2)) return none;
  std::byte one[8];
  const auto number = [&](uint64_t bits) {
    put_bits(element, one, 0, bits);
    return value_at(element, one, 0);
  };
  double least = INFINITY, greatest = -INFINITY;
  for (const uint64_t bits : sample) {
    if (bits == fill) continue;
    const double value = number(bits);
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  const double range = greatest - least, value = number(fill);
  if (!(range > 0)) return none;
  const bool far = value > greatest + kFarAway * range || value < least - kFarAway * range;
  return far ? fill : none;
}

namespace {

// What the values of a block are as a field of float32 or float64.
template <typename T>
struct Cleaned {
  std::vector<T> numbers;
  field::Holes holes;
  std::vector<uint8_t> escapes;  // empty: none
  T middle = 0;
  double greatest = 0;  // magnitude
};

// What clean() does, where all that is missing has the same bits: in vectors. False: others are
// missing, too, and nothing is done.
template <typename T, typename U>
bool clean_one_fill(const FloatLayout& layout, U fill, bool on_grid, Cleaned<T>& out) {
  const U magnitude = static_cast<U>(layout.sign - 1), infinity = static_cast<U>(layout.infinity);
  const U minus = static_cast<U>(layout.sign);
  const auto is_missing = [&](U bits) {
    return (bits & magnitude) >= infinity || bits == minus || bits == fill;
  };
  auto& numbers = out.numbers;
  const size_t n = numbers.size();
  size_t first = 0;
  while (first < n && !is_missing(std::bit_cast<U>(numbers[first]))) ++first;
  if (first == n) return false;
  const U one = std::bit_cast<U>(numbers[first]);
  if (on_grid && one == minus) return false;
  U others = 0;
  for (size_t i = 0; i < n; ++i) {
    const U bits = std::bit_cast<U>(numbers[i]);
    const U missing = ((bits & magnitude) >= infinity ? U{1} : U{0}) |
                      (bits == minus ? U{1} : U{0}) | (bits == fill ? U{1} : U{0});
    others |= bits == one ? U{0} : missing;
  }
  if (others != 0) return false;
  auto& is_hole = out.holes.is_hole;
  is_hole.resize(n);
  U most = 0, count = 0;
  for (size_t i = 0; i < n; ++i) {
    const U bits = std::bit_cast<U>(numbers[i]);
    const U kept = bits == one ? U{0} : bits;
    const U size = kept & magnitude;
    most = size > most ? size : most;
    count += bits == one ? U{1} : U{0};
    is_hole[i] = bits == one ? uint8_t{1} : uint8_t{0};
    numbers[i] = std::bit_cast<T>(kept);
  }
  out.holes.fills.push_back(one);
  out.holes.count = count;
  const auto known = std::find(is_hole.begin(), is_hole.end(), uint8_t{0});
  if (known != is_hole.end()) out.middle = numbers[static_cast<size_t>(known - is_hole.begin())];
  out.greatest = static_cast<double>(std::bit_cast<T>(most));
  return true;
}

// on_grid: -0 has no word there.
template <typename T>
Cleaned<T> clean(DType element, const std::byte* x, size_t n, uint64_t fill, bool on_grid) {
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const FloatLayout layout = layout_of(element);
  Cleaned<T> out;
  out.numbers.resize(n);
  std::memcpy(out.numbers.data(), x, n * sizeof(T));
  bool any = false;
  size_t known = n;  // the first that is there
  T greatest = 0;
  // Most blocks have none of all that: a look that a compiler makes vectors of.
  const U magnitude = static_cast<U>(layout.sign - 1), infinity = static_cast<U>(layout.infinity);
  const U filled = static_cast<U>(fill), minus = static_cast<U>(layout.sign);
  U most = 0, found = 0;
  for (size_t i = 0; i < n; ++i) {
    const U bits = std::bit_cast<U>(out.numbers[i]);
    const U size = bits & magnitude;
    most = size > most ? size : most;
    found |= (bits == filled ? U{1} : U{0}) | (on_grid && bits == minus ? U{1} : U{0});
  }
  if (most < infinity && found == 0) {
    out.middle = out.numbers[0];
    out.greatest = static_cast<double>(std::bit_cast<T>(most));
    return out;
  }
  if (clean_one_fill<T, U>(layout, filled, on_grid, out)) return out;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t bits = get<U>(x, i * sizeof(T));
    const bool special = is_special(layout, bits), minus_zero = on_grid && bits == layout.sign;
    if (!special && bits != fill && !minus_zero) {
      if (known == n) known = i;
      greatest = std::max(greatest, std::fabs(out.numbers[i]));
      continue;
    }
    if (!any) {
      out.holes.is_hole.assign(n, 0);
      out.escapes.assign(n, 0);
      any = true;
    }
    out.numbers[i] = 0;
    auto& fills = out.holes.fills;
    auto at = std::find(fills.begin(), fills.end(), bits);
    if (at == fills.end() && fills.size() < field::kMostFills && !minus_zero) {
      at = fills.insert(fills.end(), bits);
    }
    if (at == fills.end()) {
      out.escapes[i] = 1;
      continue;
    }
    out.holes.is_hole[i] = 1;
    out.holes.fill_of.push_back(static_cast<uint8_t>(at - fills.begin()));
    ++out.holes.count;
  }
  if (known < n) out.middle = out.numbers[known];
  out.greatest = static_cast<double>(greatest);
  if (out.holes.count == 0) out.holes = field::Holes{};
  if (out.holes.fills.size() == 1) out.holes.fill_of.clear();
  return out;
}

}  // namespace

template <typename T>
field::FieldEncoder<T>& Encoder::fields() {
  auto& made = [&]() -> std::unique_ptr<field::FieldEncoder<T>>& {
    if constexpr (sizeof(T) == 4) {
      return narrow_fields_;
    } else {
      return wide_fields_;
    }
  }();
  if (made == nullptr) made = std::make_unique<field::FieldEncoder<T>>();
  return *made;
}

template <typename T>
void Encoder::float_field() {
  const DType element = maps_->element();
  const uint64_t fill = common_fill();
  bool on_grid = maps_->bounded() == Map::kGrid;
  Cleaned<T> cleaned = clean<T>(element, x_, n_, fill, on_grid);
  field::Numbers<T> from;
  if (on_grid) {
    // Numbers are rounded to the type: by half a unit in the last place of the greatest.
    const double bound = maps_->bound();
    const T greatest = static_cast<T>(cleaned.greatest);
    from.step = 2 * bound - static_cast<double>(
                                std::nextafter(greatest, std::numeric_limits<T>::max()) - greatest);
    from.bound = bound;
    on_grid = from.step > bound && static_cast<T>(1 / from.step) < std::numeric_limits<T>::max();
  }
  from.kind = on_grid ? field::Kind::kGrid : field::Kind::kExact;
  from.geometry = geometry_;
  // Where a bound is above all values, they become 0.
  const bool small = on_grid && std::fabs(cleaned.middle) <= maps_->bound();
  from.middle = small ? T{0} : cleaned.middle;
  from.n = n_;
  from.numbers = cleaned.numbers.data();
  from.values = x_;
  from.element = element;
  from.holes = &cleaned.holes;
  from.escapes = cleaned.escapes.empty() ? nullptr : cleaned.escapes.data();
  fields<T>().encode(from, field_);
}

// Words of the map, as whole numbers.
template <typename Word, typename T>
void Encoder::word_field(const std::vector<Word>& words, const std::vector<uint8_t>& escapes) {
  std::vector<T> numbers(words.size());
  std::transform(words.begin(), words.end(), numbers.begin(),
                 [](Word word) { return static_cast<T>(word); });
  const field::Holes none;
  field::Numbers<T> from;
  from.kind = field::Kind::kWords;
  from.geometry = geometry_;
  from.middle = numbers[0];
  from.n = n_;
  from.numbers = numbers.data();
  from.values = x_;
  from.element = maps_->element();
  from.holes = &none;
  from.escapes = escapes.empty() ? nullptr : escapes.data();
  // Which map, and whether float32 holds its words.
  field_.push_back(static_cast<std::byte>(header_.map));
  field_.push_back(static_cast<std::byte>(sizeof(T)));
  field_.push_back(static_cast<std::byte>(header_.shift));
  append(field_, header_.origin);
  if (is_own(header_.map)) field_.insert(field_.end(), own_.begin(), own_.end());
  fields<T>().encode(from, field_);
}

template <typename Word>
void Encoder::words_field() {
  if (header_.signed_zero) return;
  std::vector<Word> words(n_);
  places_.clear();
  specials_.clear();
  header_.specials = 0;
  before_ = 0;
  const size_t bytes = size_of(maps_->element());
  for (size_t first = 0; first < n_; first += kSlice) {
    const size_t n = std::min(kSlice, n_ - first);
    map_words<Word>({x_ + first * bytes, first, n, true}, words.data() + first);
  }
  std::vector<uint8_t> escapes;
  if (header_.specials > 0) {
    if (header_.specials > most_listed(n_)) return;
    escapes.assign(n_, 0);
    for (size_t i = 0; i < header_.specials; ++i) escapes[get<uint16_t>(places_.data(), 2 * i)] = 1;
  }
  const auto ends = std::minmax_element(words.begin(), words.end());
  const Word least = *ends.first, greatest = *ends.second;
  const auto within = [&](int64_t most) { return least >= -most && greatest <= most; };
  if (within(kMostNarrow)) return word_field<Word, float>(words, escapes);
  if (within(kMostWide)) return word_field<Word, double>(words, escapes);
}

bool Encoder::may_be_field() const {
  return geometry_.width >= field::kLeastWidth && n_ >= field::kLeastValues &&
         maps_->version() >= 3 && maps_->element() != DType::kBool;
}

field::Promise Encoder::promise(const std::function<const std::byte*(size_t)>& value) const {
  const DType element = maps_->element();
  const bool floating = is_floating(element);
  const uint64_t fill = floating ? common_fill() : 0;
  double noise = maps_->bounded() == Map::kGrid ? maps_->bound() : floating ? 0 : 0.5;
  if (header_.map == Map::kMultiples) {
    // Of whole numbers, too: neighbours that are equal by accident say little. Rows' units are alike.
    const double unit = multiples_.units[multiples_.units.size() / 2];
    noise = multiples_.quotients ? 0.5 / unit : 0.5 * unit;
  }
  if (element == DType::kFloat32) {
    // The same as below, without a look at the type for each of them.
    const auto filled = static_cast<uint32_t>(fill);
    return field::promise_of(geometry_, n_, noise, [&](size_t i) -> double {
      const auto bits = get<uint32_t>(value(i));
      return bits == filled ? std::numeric_limits<double>::quiet_NaN() : std::bit_cast<float>(bits);
    });
  }
  return field::promise_of(geometry_, n_, noise, [&](size_t i) {
    const std::byte* const at = value(i);
    const bool hole = floating && bits_at(element, at, 0) == fill;
    return hole ? std::numeric_limits<double>::quiet_NaN() : value_at(element, at, 0);
  });
}

std::vector<uint32_t> Encoder::field_places(size_t n) {
  begin({}, n);
  return may_be_field() ? field::promise_places(geometry_, n) : std::vector<uint32_t>();
}

bool Encoder::needs_values(const Looked& looked, size_t n, std::span<const uint32_t> places,
                           const std::byte* values) {
  const FloatMode mode;
  begin(looked, n);
  if (looked.seen.differ == 0) return false;
  if (places.empty()) return false;
  const size_t bytes = size_of(maps_->element());
  return promise([&](size_t i) {
           const auto at = std::lower_bound(places.begin(), places.end(), i);
           return values + static_cast<size_t>(at - places.begin()) * bytes;
         })
      .worth_trying();
}

// Encodes the block as a field if that promises fewer bits. True: it does so clearly.
template <typename Word>
bool Encoder::look_at_field() {
  field_.clear();
  if (!may_be_field()) return false;
  const DType element = maps_->element();
  const bool real = element == DType::kFloat32 || element == DType::kFloat64;
  const bool of_words = !real || maps_->bounded() == Map::kLogGrid || is_own(header_.map);
  const size_t bytes = size_of(element);
  const field::Promise promised = promise([&](size_t i) { return x_ + i * bytes; });
  if (!promised.worth_trying()) return false;
  // A row alone whose words are long anyway.
  const bool row = geometry_.height == 1, much = promised.field < promised.row - kMuch;
  if (row && symbol_form_.bits > kLong && !much) return false;
  if (of_words) {
    words_field<Word>();
  } else {
    if constexpr (sizeof(Word) == 4) {
      float_field<float>();
    } else {
      float_field<double>();
    }
  }
  // Windows may do much better than the sample says, but hardly where neighbours are no better.
  const bool sure = geometry_.height > 1 && promised.field < promised.row - kSure;
  const double other = symbol_form_.bits / 8 * static_cast<double>(n_) *
                       (symbol_form_.in_heaps && !sure ? kHeaps : 1);
  return !field_.empty() && static_cast<double>(field_.size()) < kClearly * other;
}

template bool Encoder::look_at_field<int32_t>();
template bool Encoder::look_at_field<int64_t>();

}  // namespace cgx::bounded
