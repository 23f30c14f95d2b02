#include "codec/bounded/encoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/crc32c.h"
#include "codec/bounded/curve.h"
#include "codec/bounded/order.h"
#include "codec/bounded/quads.h"
#include "codec/bounded/signed_zero.h"

namespace cgx::bounded {
namespace {

template <typename Word>
constexpr int kWordBits = 8 * static_cast<int>(sizeof(Word));

template <typename Word>
const auto& word_loops() {
  if constexpr (sizeof(Word) == 4) {
    return loops().narrow;
  } else {
    return loops().wide;
  }
}

// Words are made of these, by the maps of float32 and float64.
template <typename Word>
using ValueOf = std::conditional_t<sizeof(Word) == 4, float, double>;
template <typename Word>
constexpr double kLeastNormal = sizeof(Word) == 4 ? 0x1p-126 : 0x1p-1022;

template <typename T>
void append(std::vector<std::byte>& list, const T& value) {
  const size_t at = list.size();
  list.resize(at + sizeof value);
  std::memcpy(list.data() + at, &value, sizeof value);
}

// A block with more of them is looked at as a whole, not by a sample.
constexpr size_t kManyOutOf = 16;
// Bits that a special value takes beside its own: its place.
constexpr double kPlaceBits = 16;
// Where the unit in the last place comes this close to the bound, the values' own order may be as
// short as the grid.
constexpr double kCoarse = 8;
// Where it is finer than this, the step is the same for a value eight times as great, to 0.1 %.
constexpr double kFine = 512;
constexpr size_t kLeastForCurve = 1024;
// Bits of entropy of a symbol below which four of them are packed into a byte.
constexpr double kLittle = 2.25;
// One -0 in as many values costs more than the word between the negative ones and 0.
constexpr size_t kManyZeros = 200;
// Values with so many trailing zeros are few numbers, as of images: their order has no gaps.
constexpr int kFewNumbers = 12;

}  // namespace

Encoder::Encoder(std::shared_ptr<const Maps> maps) : maps_(std::move(maps)) {}

template <typename Word, typename WordOf>
size_t Encoder::one_by_one(const Chunk& chunk, Word* words, WordOf&& word_of) {
  size_t special = 0;
  for (size_t i = 0; i < chunk.n; ++i) {
    if (word_of(i, &words[i])) {
      before_ = words[i];
      continue;
    }
    words[i] = static_cast<Word>(before_);
    ++special;
    if (!chunk.record) continue;
    const size_t bytes = bytes_of(maps_->element());
    append(places_, static_cast<uint16_t>(chunk.first + i));
    specials_.insert(specials_.end(), chunk.x + i * bytes, chunk.x + (i + 1) * bytes);
    ++header_.specials;
  }
  return special;
}

template <typename Word>
size_t Encoder::on_grid(const Chunk& chunk, Word* words) {
  const auto& loops = word_loops<Word>();
  const auto* x = reinterpret_cast<const ValueOf<Word>*>(chunk.x);
  double curve[kChunk];
  const double* fit = nullptr;
  if (header_.predictor == Predictor::kCurve) {
    for (size_t run = 0; run < chunk.n; run += kCurveRun) {
      draw_curve(&nodes_[(chunk.first + run) / kCurveRun * kCurveNodes],
                 std::min(kCurveRun, chunk.n - run), curve + run);
    }
    fit = curve;
  }
  if (!loops.to_grid(x, chunk.n, grid_, fit, words)) {
    before_ = words[chunk.n - 1];
    return 0;
  }
  return one_by_one(chunk, words, [&](size_t i, Word* word) {
    return !loops.to_grid(x + i, 1, grid_, fit == nullptr ? nullptr : fit + i, word);
  });
}

template <typename Word>
size_t Encoder::on_log_grid(const Chunk& chunk, Word* words) {
  const LogGrid& log_grid = maps_->log_grid();
  return one_by_one(chunk, words, [&](size_t i, Word* word) {
    // By bits: a thread may flush subnormal numbers.
    const uint64_t bits = bits_at(maps_->element(), chunk.x, i);
    *word = 0;
    if (bits == 0) return true;
    if (is_special(maps_->element(), bits)) return false;
    const double value = std::bit_cast<ValueOf<Word>>(static_cast<Word>(bits));
    const double magnitude = std::fabs(value);
    const LogGrid::Place place = log_grid.place(value, header_.origin);
    const double back = static_cast<ValueOf<Word>>(place.value);
    *word = static_cast<Word>(place.word);
    // The least word has no room for signed zeros.
    return *word == place.word && *word != std::numeric_limits<Word>::min() &&
           std::fabs(value - back) <= maps_->bound() * magnitude;
  });
}

template <typename Word>
size_t Encoder::map_chunk(const Chunk& chunk, Word* words) {
  switch (header_.map) {
    case Map::kOrder:
      to_order(maps_->element(), chunk.x, chunk.n, {header_.shift, header_.origin}, words);
      return 0;
    case Map::kGrid:
      return on_grid(chunk, words);
    case Map::kLogGrid:
      return on_log_grid(chunk, words);
    default:
      if constexpr (sizeof(Word) == 4) {
        const auto* bits = reinterpret_cast<const uint16_t*>(chunk.x);
        if (maps_->lattice().to_words(bits, chunk.n, words)) {
          return one_by_one(chunk, words, [&](size_t i, Word* word) {
            return !maps_->lattice().to_words(bits + i, 1, word);
          });
        }
        before_ = words[chunk.n - 1];
      }
      return 0;
  }
}

template <typename Word>
size_t Encoder::map_words(size_t first, size_t n, Word* words, bool record) {
  const Chunk chunk{x_ + first * bytes_of(maps_->element()), first, n, record};
  if (!header_.signed_zero) return map_chunk(chunk, words);
  return with_bits(maps_->element(), [&]<typename Signed>() {
    using Bits = std::make_unsigned_t<Signed>;
    const auto* bits = reinterpret_cast<const Bits*>(chunk.x);
    Bits plain[kChunk];
    without_signed_zeros(bits, n, plain);
    const size_t specials =
        map_chunk({reinterpret_cast<const std::byte*>(plain), first, n, record}, words);
    add_signed_zeros(bits, n, words);
    return specials;
  });
}

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

template <typename Word>
void Encoder::write_words() {
  const Element element = maps_->element();
  header_.predictor = choice_.predictor;
  header_.low = choice_.low;
  header_.width = choice_.width;
  header_.base = choice_.base;
  header_.outliers = header_.specials = 0;
  outliers_.clear();
  places_.clear();
  specials_.clear();
  header_.quads = false;
  header_.center = 0;
  header_.listed = 0;
  const BlockSizes sizes(header_, element, n_);
  content_.resize(sizes.symbols + sizes.coded_low);
  low_.resize(sizes.low);
  auto* symbols = reinterpret_cast<uint8_t*>(content_.data());
  auto* bytes =
      header_.low == LowBits::kCoded ? symbols + n_ : reinterpret_cast<uint8_t*>(low_.data());
  auto* bits = reinterpret_cast<uint8_t*>(low_.data()) + sizes.low_bytes * n_;
  const Low<uint8_t> lows{header_.width, bytes, n_, bits, sizes.bit_stride};
  const auto& loops = word_loops<Word>();
  const Word base = static_cast<Word>(header_.base);
  Word words[kChunk], steps[kChunk], bends[kChunk];
  Word last = 0, last_step = 0;
  before_ = 0;
  for (size_t first = 0; first < n_; first += kChunk) {
    const size_t n = std::min(kChunk, n_ - first);
    map_words(first, n, words, true);
    const Word* residuals = words;
    if (header_.predictor == Predictor::kPrevious || header_.predictor == Predictor::kLine) {
      loops.difference(words, n, last, steps);
      last = words[n - 1];
      residuals = steps;
      if (header_.predictor == Predictor::kLine) {
        loops.difference(steps, n, last_step, bends);
        last_step = steps[n - 1];
        residuals = bends;
      }
    }
    if (loops.split(residuals, n, base, lows.after(first), symbols + first)) {
      for (size_t i = 0; i < n; ++i) {
        if (symbols[first + i] != kOutlier) continue;
        append(outliers_, residuals[i]);
        ++header_.outliers;
      }
    }
  }
}

// Packs the symbols at the beginning of content_.
void Encoder::use_quads() {
  const auto* symbols = reinterpret_cast<const uint8_t*>(content_.data());
  const uint8_t center = center_of(symbols, n_);
  std::vector<uint8_t> packed(quad_bytes(n_));
  listed_.clear();
  pack_quads(symbols, n_, center, packed.data(), listed_);
  if (listed_.size() > UINT16_MAX) return;
  packed.insert(packed.end(), listed_.begin(), listed_.end());
  const auto* bytes = reinterpret_cast<const std::byte*>(packed.data());
  content_.erase(content_.begin(), content_.begin() + static_cast<std::ptrdiff_t>(n_));
  content_.insert(content_.begin(), bytes, bytes + packed.size());
  header_.quads = true;
  header_.center = center;
  header_.listed = static_cast<uint16_t>(listed_.size());
}

template <typename Word>
void Encoder::encode_words() {
  choose_starts();
  const Seen seen = look();
  if (seen.differ == 0) {
    header_.map = Map::kConstant;
    return;
  }
  choose_map<Word>(seen);
  choose_curve<Word>();
  write_words<Word>();
  if ((header_.outliers + header_.specials) * kManyOutOf > n_) {
    // The sample has misled: by all values, then. A map with a bound that fails too often gives way.
    if (header_.specials * kManyOutOf > n_) use_order();
    size_t specials;
    header_.predictor = Predictor::kNone;  // no curve
    choice_ = choose(sample_words<Word>(true, &specials), kWordBits<Word>);
    write_words<Word>();
  }
  if (choice_.entropy < kLittle) use_quads();
  if (header_.predictor == Predictor::kCurve) {
    const size_t at = content_.size();
    content_.resize(at + curve_bytes(n_));
    write_nodes(nodes_.data(), n_, content_.data() + at);
  }
  for (const auto* list : {&outliers_, &places_, &specials_}) {
    content_.insert(content_.end(), list->begin(), list->end());
  }
}

void Encoder::encode(const std::byte* x, size_t n) {
  x_ = x;
  n_ = n;
  header_ = BlockHeader{};
  choice_ = Choice{};
  content_.clear();
  low_.clear();
  with_word(maps_->element(), [&]<typename Word>() { encode_words<Word>(); });
}

std::span<const std::byte> Encoder::finish(std::span<const std::byte> frame, Arena& arena) {
  const size_t value = bytes_of(maps_->element());
  header_.compressed = !frame.empty() && frame.size() < content_.size();
  const std::span<const std::byte> coded = header_.compressed ? frame : content();
  header_.coded = static_cast<uint32_t>(coded.size());
  std::byte header[BlockHeader::kBytes];
  std::span<const std::byte> head(header, 1), body, low;
  if (header_.map == Map::kConstant) {
    if (bits_at(maps_->element(), x_, 0) == 0) return {};
    body = {x_, value};
  } else if (BlockHeader::kBytes + coded.size() + low_.size() <= n_ * value) {
    head = header;
    body = coded;
    low = low_;
  } else {
    header_.map = Map::kRaw;
    body = {x_, n_ * value};
  }
  header_.write(header);
  const size_t bytes = head.size() + body.size() + low.size() + kCrcBytes;
  std::byte* const block = arena.take(bytes);
  std::byte* at = block;
  for (const auto& part : {head, body, low}) at = std::copy(part.begin(), part.end(), at);
  const uint32_t crc = crc32c(block, bytes - kCrcBytes);
  std::memcpy(at, &crc, kCrcBytes);
  return {block, bytes};
}

}  // namespace cgx::bounded
