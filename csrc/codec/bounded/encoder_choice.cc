// How a block is written: its map, and what a sample says about the rest.
#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/bounded/encoder.h"
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
constexpr size_t kLeastForCurve = 1024;
// One -0 in as many values costs more than the word between the negative ones and 0.
constexpr size_t kManyZeros = 200;
// Values with so many trailing zeros are few numbers, as of images: their order has no gaps.
constexpr int kFewNumbers = 12;

}  // namespace

// Whether -0 is so frequent in the sample that it needs a word.
bool Encoder::many_signed_zeros() const {
  const Element element = maps_->element();
  const uint64_t minus_zero = uint64_t{1} << (8 * bytes_of(element) - 1);
  size_t found = 0, looked = 0;
  const auto look = [&](size_t first, size_t n) {
    for (size_t i = first; i < first + n; ++i) found += bits_at(element, x_, i) == minus_zero;
    looked += n;
  };
  if (starts_.empty()) look(0, n_);
  for (const size_t start : starts_) look(start, Sample::kRun);
  return found * kManyZeros > looked;
}

// Starts of the sample's runs. They are not at equal distances: rows of a matrix may be.
void Encoder::choose_starts() {
  starts_.clear();
  constexpr size_t kRuns = Sample::kRuns, kRun = Sample::kRun;
  if (n_ <= kRuns * kRun) return;
  const size_t step = (n_ - kRun) / (kRuns - 1);
  for (size_t k = 0; k < kRuns; ++k) {
    const bool inside = k > 0 && k + 1 < kRuns;
    starts_.push_back(k * step + (inside ? k * 37 % (step - kRun + 1) : 0));
  }
}

template <typename Word>
Sample Encoder::sample_words(bool all, size_t* specials) {
  Sample sample;
  sample.words.reserve(Sample::kRuns * Sample::kRun);
  Word words[kChunk];
  before_ = 0;
  *specials = 0;
  const auto take = [&](size_t first, size_t n) {
    *specials += map_words(first, n, words, false);
    sample.words.insert(sample.words.end(), words, words + n);
  };
  if (all || starts_.empty()) {
    for (size_t first = 0; first < n_; first += kChunk) take(first, std::min(kChunk, n_ - first));
  } else {
    for (const size_t start : starts_) take(start, Sample::kRun);
  }
  return sample;
}

// Looks at the sample only, where this is enough: the grid's step hardly depends on the greatest
// value, and the values are not all the same.
Seen Encoder::look() const {
  const Element element = maps_->element();
  const size_t bytes = bytes_of(element);
  if (maps_->bounded() != Map::kGrid || starts_.empty()) return look_at(element, x_, n_);
  Seen seen{0, 0, 0};
  for (const size_t start : starts_) {
    const Seen run = look_at(element, x_ + start * bytes, Sample::kRun);
    seen.greatest = std::max(seen.greatest, run.greatest);
    seen.differ |= run.differ;
    seen.any |= run.any;
  }
  // Eight times the greatest, for what the sample has missed; beyond that, values are special.
  seen.greatest += uint64_t{3} << (bytes == 4 ? 23 : 52);
  const bool fine = unit_of(seen) * kFine < maps_->bound();
  return seen.differ != 0 && fine ? seen : look_at(element, x_, n_);
}

double Encoder::unit_of(const Seen& seen) const {
  return maps_->element() == Element::kFloat32 ? unit_of_float(static_cast<uint32_t>(seen.greatest))
                                               : unit_of_double(seen.greatest);
}

void Encoder::use_order() {
  const Element element = maps_->element();
  const size_t bytes = bytes_of(element);
  const Seen seen = look_at(element, x_, n_);
  header_ = BlockHeader{};
  header_.map = Map::kOrder;
  header_.shift = seen.any == 0 ? 0 : std::countr_zero(seen.any);
  if (starts_.empty()) {
    header_.origin = origin_for(element, x_, n_, header_.shift);
    return;
  }
  header_.origin = INT64_MAX;
  for (const size_t start : starts_) {
    header_.origin = std::min(header_.origin,
                              origin_for(element, x_ + start * bytes, Sample::kRun, header_.shift));
  }
}

// A map, and a choice for it. The map with a bound is not always the shorter one: where neighbours
// are farther apart than the bound, the values' own order is as good and has no gaps.
template <typename Word>
void Encoder::choose_map(const Seen& seen) {
  const Element element = maps_->element();
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
    const auto* x = reinterpret_cast<const ValueOf<Word>*>(x_);
    double least = INFINITY;
    for (size_t i = 0; i < n_; ++i) {
      const double magnitude = std::fabs(static_cast<double>(x[i]));
      least = magnitude >= kLeastNormal<Word> && magnitude < least ? magnitude : least;
    }
    header_.origin = std::isfinite(least) ? exponent_of(least) : 0;
  }
  if (header_.map != Map::kOrder) {
    header_.signed_zero = many_signed_zeros();
    const Sample sample = sample_words<Word>(false, &specials);
    choice_ = choose(sample, kWordBits<Word>);
    const double share = static_cast<double>(specials) / static_cast<double>(sample.words.size());
    best = choice_.bits + share * (kPlaceBits + 8 * static_cast<double>(bytes_of(element)));
    alone = alone && share < 0.02;
  }
  if (header_.map == Map::kOrder || !alone) {
    const BlockHeader bounded = header_;
    use_order();
    const Choice ordered = choose(sample_words<Word>(false, &specials), kWordBits<Word>);
    if (ordered.bits < best) {
      choice_ = ordered;
    } else {
      header_ = bounded;
    }
  }
}

// Smooth values: tries curves on some runs, and takes them if they promise fewer bits.
template <typename Word>
void Encoder::choose_curve() {
  if (header_.map != Map::kGrid || header_.signed_zero || n_ < kLeastForCurve) return;
  if (choice_.predictor != Predictor::kPrevious && choice_.predictor != Predictor::kLine) return;
  const auto* x = reinterpret_cast<const ValueOf<Word>*>(x_);
  const size_t runs = (n_ + kCurveRun - 1) / kCurveRun;
  double positions[kCurveRun], curve[kCurveRun];
  Word words[kCurveRun];
  const auto fit = [&](size_t run, int32_t* nodes) {
    const size_t first = run * kCurveRun, n = std::min(kCurveRun, n_ - first);
    for (size_t i = 0; i < n; ++i) positions[i] = static_cast<double>(x[first + i]) * grid_.inverse;
    return fit_curve(positions, n, nodes);
  };
  constexpr size_t kTried = 8;
  Sample sample;
  for (size_t k = 0; k < kTried; ++k) {
    int32_t nodes[kCurveNodes];
    const size_t run = k * (n_ / kCurveRun - 1) / (kTried - 1);
    if (!fit(run, nodes)) return;
    draw_curve(nodes, kCurveRun, curve);
    word_loops<Word>().to_grid(x + run * kCurveRun, kCurveRun, grid_, curve, words);
    sample.words.insert(sample.words.end(), words, words + kCurveRun);
  }
  Choice choice = choose(sample, kWordBits<Word>);
  constexpr double kNodeBits = 16.0 * kCurveNodes / kCurveRun;
  // What is left must not need a predictor: the curve is it.
  if (choice.predictor != Predictor::kNone || choice.bits + kNodeBits >= choice_.bits) return;
  nodes_.assign(runs * kCurveNodes, 0);
  for (size_t run = 0; run < runs; ++run) {
    if (!fit(run, &nodes_[run * kCurveNodes])) {
      // A run with an infinite value, or an absurd one: the curve before goes on.
      if (run > 0)
        std::copy_n(&nodes_[(run - 1) * kCurveNodes], kCurveNodes, &nodes_[run * kCurveNodes]);
    }
  }
  choice_ = choice;
  choice_.predictor = Predictor::kCurve;
}

template Sample Encoder::sample_words<int32_t>(bool, size_t*);
template Sample Encoder::sample_words<int64_t>(bool, size_t*);
template void Encoder::choose_map<int32_t>(const Seen&);
template void Encoder::choose_map<int64_t>(const Seen&);
template void Encoder::choose_curve<int32_t>();
template void Encoder::choose_curve<int64_t>();

}  // namespace cgx::bounded
