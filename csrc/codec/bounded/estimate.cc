#include "codec/bounded/estimate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace cgx::bounded {
namespace {

constexpr int kSymbols = 256;
constexpr int kOutlierSymbol = 255;
// What Huffman codes lose beside the entropy does not matter between predictors; a bias does: no
// predictor is better than one by less than this.
constexpr double kClearlyBetter = 0.05;
// Larger shares of outliers are not considered.
constexpr double kMostOutliers = 0.06;

// Differences in arithmetic that wraps at 32 or 64 bits.
int64_t wrapped(uint64_t x, int word_bits) {
  return word_bits == 32 ? static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(x)))
                         : static_cast<int64_t>(x);
}

uint64_t magnitude(int64_t x) {
  return x < 0 ? ~static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
}

// Residuals of the sample, all predictors of the same places: runs without their first two values.
std::vector<int64_t> residuals_of(const Sample& sample, Predictor predictor, int word_bits) {
  std::vector<int64_t> out;
  out.reserve(sample.words.size());
  const auto& w = sample.words;
  for (size_t run = 0; run < w.size(); run += Sample::kRun) {
    const size_t end = std::min(run + Sample::kRun, w.size());
    for (size_t i = run + 2; i < end; ++i) {
      const auto a = static_cast<uint64_t>(w[i]), b = static_cast<uint64_t>(w[i - 1]),
                 c = static_cast<uint64_t>(w[i - 2]);
      if (predictor == Predictor::kPrevious) {
        out.push_back(wrapped(a - b, word_bits));
      } else if (predictor == Predictor::kLine) {
        out.push_back(wrapped(a - 2 * b + c, word_bits));
      } else {
        out.push_back(w[i]);
      }
    }
  }
  if (out.empty()) out = w;
  return out;
}

// c log2 c: entropies of samples are sums of these.
double weight_of(size_t count) {
  constexpr size_t kTabled = Sample::kRun * Sample::kRuns + 1;
  static const auto table = [] {
    std::array<double, kTabled> made{};
    for (size_t c = 1; c < kTabled; ++c) {
      made[c] = static_cast<double>(c) * std::log2(static_cast<double>(c));
    }
    return made;
  }();
  if (count < kTabled) return table[count];
  return static_cast<double>(count) * std::log2(static_cast<double>(count));
}

// -sum p log2 p of counts, with the bias of few samples mended (Miller, 1955).
double entropy_of(const uint32_t* counts, size_t classes, size_t total) {
  if (total == 0) return 0;
  double sum = 0;
  size_t seen = 0;
  for (size_t i = 0; i < classes; ++i) {
    if (counts[i] == 0) continue;
    sum += weight_of(counts[i]);
    ++seen;
  }
  const double n = static_cast<double>(total);
  constexpr double kLog2 = 0.6931471805599453;
  return (weight_of(total) - sum) / n + (static_cast<double>(seen) - 1) / (2 * n * kLog2);
}

// Bits a value by lengths alone: the entropy of the lengths, and the bits below the first.
double coarse_cost(const std::vector<int64_t>& residuals, int64_t center, int word_bits) {
  std::array<uint32_t, 65> counts{};
  double below = 0;
  for (const int64_t r : residuals) {
    const int64_t x = wrapped(static_cast<uint64_t>(r) - static_cast<uint64_t>(center), word_bits);
    const int length = std::bit_width(magnitude(x));
    ++counts[static_cast<size_t>(length)];
    below += length;  // the sign, and all but the first bit
  }
  return entropy_of(counts.data(), counts.size(), residuals.size()) +
         below / static_cast<double>(residuals.size());
}

int64_t median_of(const std::vector<int64_t>& values) {
  std::vector<int64_t> some;
  const size_t step = std::max<size_t>(1, values.size() / 127);
  for (size_t i = 0; i < values.size(); i += step) some.push_back(values[i]);
  const auto middle = some.begin() + static_cast<std::ptrdiff_t>(some.size() / 2);
  std::nth_element(some.begin(), middle, some.end());
  return *middle;
}

struct Split {
  int width = 0;
  int64_t base = 0;
  double bits = 1e9, entropy = 0;
};

// What residuals cost with symbols of that width, the lowest at `base`.
Split cost_of(const std::vector<int64_t>& residuals, int64_t base, int width, int word_bits) {
  std::array<uint32_t, kSymbols> counts{};
  const uint64_t mask = word_bits == 32 ? 0xffffffff : ~uint64_t{0};
  for (const int64_t r : residuals) {
    const uint64_t high =
        ((static_cast<uint64_t>(r) - static_cast<uint64_t>(base)) & mask) >> width;
    ++counts[std::min<uint64_t>(high, kOutlierSymbol)];
  }
  Split split{width, base, 0, entropy_of(counts.data(), kSymbols, residuals.size())};
  const double outliers =
      static_cast<double>(counts[kOutlierSymbol]) / static_cast<double>(residuals.size());
  split.bits = width + split.entropy + outliers * word_bits;
  return split;
}

// The widest symbols' range that fits [lo, hi] of the sample and as much again outside of it as a
// whole block may show.
Split fitted(const std::vector<int64_t>& residuals, int64_t lo, int64_t hi, int word_bits) {
  const uint64_t span = static_cast<uint64_t>(hi) - static_cast<uint64_t>(lo);
  const uint64_t room = span + span / 4 + 2;
  int width = 0;
  while (width < word_bits - 8 && (room < span || (room >> width) > 252)) ++width;
  const uint64_t covered = uint64_t{255} << width;
  const uint64_t margin = covered > span ? (covered - span) / 2 : 0;
  const int64_t base = wrapped(static_cast<uint64_t>(lo) - margin, word_bits);
  return cost_of(residuals, base, width, word_bits);
}

Split best_split(const std::vector<int64_t>& residuals, int64_t center, int word_bits) {
  // By distance from the center: sorted into lengths, of which the greatest may be left to outliers.
  std::array<uint32_t, 65> counts{};
  std::array<int64_t, 65> lo, hi;
  lo.fill(INT64_MAX);
  hi.fill(INT64_MIN);
  for (const int64_t r : residuals) {
    const int64_t x = wrapped(static_cast<uint64_t>(r) - static_cast<uint64_t>(center), word_bits);
    const auto length = static_cast<size_t>(std::bit_width(magnitude(x)));
    ++counts[length];
    lo[length] = std::min(lo[length], r);
    hi[length] = std::max(hi[length], r);
  }
  for (size_t i = 1; i < counts.size(); ++i) {
    lo[i] = std::min(lo[i], lo[i - 1]);
    hi[i] = std::max(hi[i], hi[i - 1]);
  }
  Split best;
  size_t outside = 0;
  for (size_t length = counts.size(); length-- > 0;) {
    if (counts[length] == 0) continue;
    const Split split = fitted(residuals, lo[length], hi[length], word_bits);
    if (split.bits < best.bits - 0.01) best = split;
    outside += counts[length];
    if (static_cast<double>(outside) > kMostOutliers * static_cast<double>(residuals.size())) break;
  }
  // Coarser symbols are decoded faster: taken where they cost next to nothing.
  for (int wider = 0; wider < 2 && best.width < word_bits - 8 && best.entropy > 5.5; ++wider) {
    const int64_t middle =
        wrapped(static_cast<uint64_t>(best.base) + (uint64_t{127} << best.width), word_bits);
    const int width = best.width + 1;
    const int64_t base =
        wrapped(static_cast<uint64_t>(middle) - (uint64_t{127} << width), word_bits);
    const Split split = cost_of(residuals, base, width, word_bits);
    if (split.bits > best.bits + 0.02) break;
    best = split;
  }
  return best;
}

// Whole bytes to the entropy coder: pays where low bits are no noise.
Split coded_split(const std::vector<int64_t>& residuals, const Split& planes, int word_bits) {
  const int width = std::min((planes.width + 7) / 8 * 8, word_bits - 8);
  const int64_t base = planes.base & ~((int64_t{1} << width) - 1);
  Split split = cost_of(residuals, base, width, word_bits);
  double bits = split.bits - width;
  for (int at = 0; at < width; at += 8) {
    std::array<uint32_t, kSymbols> counts{};
    for (const int64_t r : residuals) {
      ++counts[((static_cast<uint64_t>(r) - static_cast<uint64_t>(base)) >> at) & 255];
    }
    bits += std::min(8.0, entropy_of(counts.data(), kSymbols, residuals.size()));
  }
  split.bits = bits;
  return split;
}

}  // namespace

Choice choose(const Sample& sample, int word_bits) {
  const std::vector<int64_t> plain = residuals_of(sample, Predictor::kNone, word_bits);
  const int64_t center = median_of(plain);
  const double plain_cost = coarse_cost(plain, center, word_bits);
  Choice choice;
  if (plain_cost < coarse_cost(plain, 0, word_bits) - kClearlyBetter) {
    choice.predictor = Predictor::kMean;
  }
  Split split = best_split(plain, center, word_bits);
  std::vector<int64_t> residuals;  // of another predictor
  double cost = plain_cost;
  for (const Predictor predictor : {Predictor::kPrevious, Predictor::kLine}) {
    std::vector<int64_t> found = residuals_of(sample, predictor, word_bits);
    const double found_cost = coarse_cost(found, 0, word_bits);
    if (found_cost >= cost - kClearlyBetter) continue;
    // Lengths say too little of words in several heaps: symbols have the last word.
    const Split other = best_split(found, 0, word_bits);
    if (other.bits >= split.bits - kClearlyBetter) continue;
    cost = found_cost;
    split = other;
    choice.predictor = predictor;
    residuals = std::move(found);
  }
  if (split.width > 0) {
    const Split coded = coded_split(residuals.empty() ? plain : residuals, split, word_bits);
    if (coded.bits < split.bits - 0.1) {
      split = coded;
      choice.low = LowBits::kCoded;
    }
  }
  choice.width = split.width;
  choice.base = split.base;
  choice.bits = split.bits;
  choice.entropy = split.entropy;
  return choice;
}

}  // namespace cgx::bounded
