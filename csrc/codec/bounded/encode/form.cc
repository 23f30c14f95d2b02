// How a block is written: its map, and what a sample says about the rest.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/bounded/bytes.h"
#include "codec/bounded/encode/encoder.h"
#include "codec/bounded/encode/repeats.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {
namespace {

// Bits that a special value takes beside its own: its place.
constexpr double kPlaceBits = 16;
// Where the unit in the last place comes this close to the bound, the values' own order may be as
// short as the grid.
constexpr double kCoarse = 8;
// Where it is finer than this, the step is the same for a value eight times as great, to 0.1 %.
constexpr double kFine = 512;
// One -0 in as many values costs more than the word between the negative ones and 0.
constexpr size_t kManyZeros = 200;
// One subnormal number in as many values costs more than the words of its binades, which no other
// value has.
constexpr size_t kManySubnormal = 64;
// Values with so many trailing zeros are few numbers, as of images: their order has no gaps.
constexpr int kFewNumbers = 12;

}  // namespace

void Encoder::look_at_sample(const std::function<void(const std::byte*, size_t)>& look) const {
  const size_t bytes = size_of(maps_->element());
  const bool here = looked_.values != nullptr;
  if (n_ <= kSampled) return look(here ? looked_.values : looked_.sample, n_);
  for (uint32_t k = 0; k < kRuns; ++k) {
    const uint32_t start = start_of_run(static_cast<uint32_t>(n_), k);
    look(here ? looked_.values + start * bytes : looked_.sample + k * kRun * bytes, size_t{kRun});
  }
}

Seen Encoder::look_at_all() const {
  if (looked_.values == nullptr) return looked_.seen;
  return look_at(maps_->element(), looked_.values, n_);
}

// Whether -0 is so frequent in the sample that it needs a word.
bool Encoder::many_signed_zeros() const {
  const DType element = maps_->element();
  const uint64_t minus_zero = uint64_t{1} << (8 * size_of(element) - 1);
  size_t found = 0, looked = 0;
  look_at_sample([&](const std::byte* x, size_t n) {
    found += count_bits(element, x, n, minus_zero);
    looked += n;
  });
  return found * kManyZeros > looked;
}

template <typename Word>
Sample Encoder::sample_words(bool all, size_t* specials) {
  Sample sample;
  sample.words.reserve(kSampled);
  Word words[kSlice];
  before_ = 0;
  *specials = 0;
  const auto take = [&](const std::byte* x, size_t n) {
    *specials += map_words<Word>({x, 0, n, false}, words);
    sample.words.insert(sample.words.end(), words, words + n);
  };
  if (!all) {
    look_at_sample(take);
    return sample;
  }
  const size_t bytes = size_of(maps_->element());
  for (size_t first = 0; first < n_; first += kSlice) {
    take(x_ + first * bytes, std::min(kSlice, n_ - first));
  }
  return sample;
}

// Looks at the sample only, where this is enough: the grid's step hardly depends on the greatest
// value, and the values are not all the same.
Seen Encoder::look() const {
  const DType element = maps_->element();
  if (maps_->bounded() != Map::kGrid || n_ <= kSampled) return look_at_all();
  Seen seen{0, 0, 0};
  look_at_sample([&](const std::byte* x, size_t n) {
    const Seen run = look_at(element, x, n);
    seen.greatest = std::max(seen.greatest, run.greatest);
    seen.differ |= run.differ;
    seen.any |= run.any;
  });
  // Eight times the greatest, for what the sample has missed; beyond that, values are special.
  seen.greatest += uint64_t{3} << (size_of(element) == 4 ? 23 : 52);
  const bool fine = unit_of(seen) * kFine < maps_->bound();
  return seen.differ != 0 && fine ? seen : look_at_all();
}

double Encoder::unit_of(const Seen& seen) const {
  return maps_->element() == DType::kFloat32 ? unit_of_float(static_cast<uint32_t>(seen.greatest))
                                             : unit_of_double(seen.greatest);
}

void Encoder::use_order() {
  const DType element = maps_->element();
  const Seen seen = look_at_all();
  header_ = BlockHeader{};
  header_.map = Map::kOrder;
  header_.shift = seen.any == 0 ? 0 : std::countr_zero(seen.any);
  header_.origin = INT64_MAX;
  look_at_sample([&](const std::byte* x, size_t n) {
    header_.origin = std::min(header_.origin, origin_for(element, x, n, header_.shift));
  });
}

// The least magnitude among the subnormal numbers of the sample, if there are many; else infinity.
template <typename Word>
double Encoder::least_subnormal() const {
  const DType element = maps_->element();
  double least = INFINITY;
  size_t found = 0, looked = 0;
  look_at_sample([&](const std::byte* x, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const uint64_t bits = bits_at(element, x, i);
      if (!is_subnormal(element, bits)) continue;
      const double value = std::bit_cast<ValueOf<Word>>(static_cast<Word>(bits));
      least = std::min(least, std::fabs(value));
      ++found;
    }
    looked += n;
  });
  return found * kManySubnormal > looked ? least : INFINITY;
}

// The exponent of the least magnitude, without subnormal numbers where they are few; 0 for a block
// without magnitudes.
template <typename Word>
int64_t Encoder::least_exponent() const {
  using Value = ValueOf<Word>;
  double least = INFINITY;
  if (looked_.values == nullptr) {
    least = std::bit_cast<Value>(static_cast<std::make_unsigned_t<Word>>(looked_.least));
  } else {
    const auto* x = reinterpret_cast<const Value*>(looked_.values);
    for (size_t i = 0; i < n_; ++i) {
      const double magnitude = std::fabs(static_cast<double>(x[i]));
      const bool normal = magnitude >= static_cast<double>(std::numeric_limits<Value>::min());
      least = normal && magnitude < least ? magnitude : least;
    }
  }
  least = std::min(least, least_subnormal<Word>());
  return std::isfinite(least) ? exponent_of(least) : 0;
}

namespace {

// Whether a sample has so few words that it repeats them, far from each other: those next to each
// other are what symbols are for.
bool are_few(const std::vector<int64_t>& words) {
  const size_t distinct = tally_of(std::vector<uint64_t>(words.begin(), words.end())).distinct;
  const auto [least, greatest] = std::minmax_element(words.begin(), words.end());
  const double span = static_cast<double>(*greatest) - static_cast<double>(*least);
  return distinct * 3 < words.size() && span > 3 * static_cast<double>(distinct);
}

}  // namespace

// A map, and the form of the symbols for it. The map with a bound is not always the shorter one: where neighbours
// are farther apart than the bound, the values' own order is as good and has no gaps.
template <typename Word>
void Encoder::choose_map(const Seen& seen) {
  const DType element = maps_->element();
  size_t specials = 0;
  header_.map = maps_->bounded();
  double best = 1e9;
  bool alone = true;  // the order need not be looked at
  if (header_.map == Map::kGrid) {
    grid_ = make_grid(maps_->bound(), unit_of(seen));
    header_.step = grid_.step;
    alone = unit_of(seen) * kCoarse < maps_->bound() &&
            (seen.any == 0 || std::countr_zero(seen.any) < kFewNumbers);
  } else if (header_.map == Map::kLogGrid) {
    header_.origin = least_exponent<Word>();
  }
  if (header_.map != Map::kOrder) {
    header_.signed_zero = many_signed_zeros();
    const Sample sample = sample_words<Word>(false, &specials);
    symbol_form_ = choose(sample, kWordBits<Word>);
    const double share = static_cast<double>(specials) / static_cast<double>(sample.words.size());
    best = symbol_form_.bits + share * (kPlaceBits + 8 * static_cast<double>(size_of(element)));
    alone = alone && share < 0.02;
    // Words that are close have short symbols.
    few_words_ = header_.map == Map::kGrid && !header_.signed_zero && symbol_form_.bits > 3 &&
                 are_few(sample.words);
  }
  if (header_.map == Map::kOrder || !alone) {
    const BlockHeader bounded = header_;
    use_order();
    const SymbolForm ordered = choose(sample_words<Word>(false, &specials), kWordBits<Word>);
    if (ordered.bits < best) {
      symbol_form_ = ordered;
    } else {
      header_ = bounded;
    }
  }
}

namespace {

// Nodes of a curve through n values on the grid, as fit_curve().
template <typename Value>
bool fit_values(const Value* x, size_t n, const Grid& grid, int32_t* nodes) {
  double positions[kCurveRun];
  for (size_t i = 0; i < n; ++i) positions[i] = static_cast<double>(x[i]) * grid.inverse;
  return fit_curve(positions, n, nodes);
}

}  // namespace

// Smooth values: tries curves on some runs, and takes them if they promise fewer bits.
template <typename Word>
void Encoder::choose_curve() {
  if (header_.map != Map::kGrid || header_.signed_zero || n_ < kLeastForCurve) return;
  if (symbol_form_.predictor != Predictor::kPrevious && symbol_form_.predictor != Predictor::kLine)
    return;
  double curve[kCurveRun];
  Word words[kCurveRun];
  Sample sample;
  for (uint32_t k = 0; k < kTried; ++k) {
    const bool here = looked_.values != nullptr;
    const auto* x = reinterpret_cast<const ValueOf<Word>*>(here ? looked_.values : looked_.tried) +
                    (here ? start_of_tried(static_cast<uint32_t>(n_), k) : k * kCurveRun);
    int32_t nodes[kCurveNodes];
    if (!fit_values(x, kCurveRun, grid_, nodes)) return;
    draw_curve(nodes, kCurveRun, curve);
    word_loops<Word>().to_grid(x, kCurveRun, grid_, curve, words);
    sample.words.insert(sample.words.end(), words, words + kCurveRun);
  }
  SymbolForm form = choose(sample, kWordBits<Word>);
  constexpr double kNodeBits = 16.0 * kCurveNodes / kCurveRun;
  // What is left must not need a predictor: the curve is it.
  if (form.predictor != Predictor::kNone || form.bits + kNodeBits >= symbol_form_.bits) return;
  symbol_form_ = form;
  symbol_form_.predictor = Predictor::kCurve;
}

template <typename Word>
void Encoder::fit_curves() {
  const auto* x = reinterpret_cast<const ValueOf<Word>*>(x_);
  const size_t runs = (n_ + kCurveRun - 1) / kCurveRun;
  nodes_.assign(runs * kCurveNodes, 0);
  for (size_t run = 0; run < runs; ++run) {
    const size_t first = run * kCurveRun, n = std::min<size_t>(kCurveRun, n_ - first);
    int32_t* nodes = &nodes_[run * kCurveNodes];
    // A run with infinite or huge values has no curve of its own and uses that of the run before it.
    // The first run has one: choose_curve() has tried it.
    if (!fit_values(x + first, n, grid_, nodes) && run > 0) {
      std::copy_n(nodes - kCurveNodes, kCurveNodes, nodes);
    }
  }
}

// Everything that is chosen by looking at the block.
template <typename Word>
void Encoder::choose_words() {
  const Seen seen = look();
  if (seen.differ == 0) {
    header_.map = Map::kConstant;
    return;
  }
  choose_map<Word>(seen);
  choose_own<Word>();
  choose_curve<Word>();
}

template Sample Encoder::sample_words<int32_t>(bool, size_t*);
template Sample Encoder::sample_words<int64_t>(bool, size_t*);
template void Encoder::choose_words<int32_t>();
template void Encoder::choose_words<int64_t>();
template void Encoder::fit_curves<int32_t>();
template void Encoder::fit_curves<int64_t>();

}  // namespace cgx::bounded
