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
// Symbols with more bits of entropy than this may be too fine.
constexpr double kFineSymbols = 5.5;

uint64_t magnitude(int64_t x) {
  return x < 0 ? ~static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
}

// By operations that IEEE defines to the last bit: libraries' logarithms differ, and so would payloads.
double log2_of(double x) {
  int exponent;
  const double mantissa = std::frexp(x, &exponent);                              // in [1/2, 1)
  const double ratio = (mantissa - 1) / (mantissa + 1), square = ratio * ratio;  // at least -1/3
  double power = ratio, sum = 0;
  for (int k = 1; k < 40; k += 2, power *= square) sum += power / k;
  constexpr double kLog2 = 0.6931471805599453;
  return exponent + 2 * sum / kLog2;
}

// c log2 c: entropies of samples are sums of these.
double weight_of(size_t count) {
  constexpr size_t kTabled = kSampled + 1;
  static const auto table = [] {
    std::array<double, kTabled> made{};
    for (size_t c = 1; c < kTabled; ++c) {
      made[c] = static_cast<double>(c) * log2_of(static_cast<double>(c));
    }
    return made;
  }();
  if (count < kTabled) return table[count];
  return static_cast<double>(count) * log2_of(static_cast<double>(count));
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

// In words of kBits bits, in which differences wrap.
template <int kBits>
struct Estimator {
  // Differences in arithmetic that wraps at 32 or 64 bits.
  static int64_t wrapped(uint64_t x) {
    return kBits == 32 ? static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(x)))
                       : static_cast<int64_t>(x);
  }

  // Residuals of the sample, all predictors of the same places: runs without their first two values.
  static std::vector<int64_t> residuals_of(const Sample& sample, Predictor predictor) {
    const std::vector<int64_t>& words = sample.words;
    std::vector<int64_t> out(words.size());
    size_t n = 0;
    for (size_t run = 0; run < words.size(); run += kRun) {
      const int64_t* w = words.data() + run;
      const size_t length = std::min<size_t>(kRun, words.size() - run);
      for (size_t i = 2; i < length; ++i) {
        const auto a = static_cast<uint64_t>(w[i]), b = static_cast<uint64_t>(w[i - 1]),
                   c = static_cast<uint64_t>(w[i - 2]);
        out[n++] = predictor == Predictor::kPrevious ? wrapped(a - b)
                   : predictor == Predictor::kLine   ? wrapped(a - 2 * b + c)
                                                     : w[i];
      }
    }
    out.resize(n);
    return n > 0 ? out : words;
  }

  // Mean length in bits: enough to see which predictors are worth a closer look.
  static double mean_length(const std::vector<int64_t>& residuals, int64_t center) {
    int64_t sum = 0;
    for (const int64_t r : residuals) {
      const int64_t x = wrapped(static_cast<uint64_t>(r) - static_cast<uint64_t>(center));
      sum += std::bit_width(magnitude(x));
    }
    return static_cast<double>(sum) / static_cast<double>(residuals.size());
  }

  // How often each symbol occurs. Two tables, since neighbours are often alike, and a count that was
  // just written is slow to read.
  struct Histogram {
    std::array<uint32_t, kSymbols> counts{};

    Histogram(const std::vector<int64_t>& residuals, int64_t base, int width) {
      std::array<uint32_t, kSymbols> others{};
      const uint64_t mask = kBits == 32 ? 0xffffffff : ~uint64_t{0};
      const auto symbol = [&](int64_t r) {
        const uint64_t u = (static_cast<uint64_t>(r) - static_cast<uint64_t>(base)) & mask;
        return std::min<uint64_t>(u >> width, kOutlierSymbol);
      };
      size_t i = 0;
      for (; i + 2 <= residuals.size(); i += 2) {
        ++counts[symbol(residuals[i])];
        ++others[symbol(residuals[i + 1])];
      }
      if (i < residuals.size()) ++counts[symbol(residuals[i])];
      for (size_t s = 0; s < kSymbols; ++s) counts[s] += others[s];
    }
  };

  // What residuals cost with symbols of that width, the lowest at `base`.
  static Split cost_of(const Histogram& histogram, size_t n, int64_t base, int width) {
    Split split{width, base, 0, entropy_of(histogram.counts.data(), kSymbols, n)};
    const double outliers = histogram.counts[kOutlierSymbol];
    split.bits = width + split.entropy + outliers / static_cast<double>(n) * kBits;
    return split;
  }

  // The narrowest symbols whose range covers [lo, hi] of the sample, and as much outside of it as a
  // whole block may show.
  static Split fitted(const std::vector<int64_t>& residuals, int64_t lo, int64_t hi) {
    const uint64_t span = static_cast<uint64_t>(hi) - static_cast<uint64_t>(lo);
    const uint64_t room = span + span / 4 + 2;
    int width = 0;
    while (width < kBits - 8 && (room < span || (room >> width) > 252)) ++width;
    const uint64_t covered = uint64_t{255} << width;
    const uint64_t margin = covered > span ? (covered - span) / 2 : 0;
    const int64_t base = wrapped(static_cast<uint64_t>(lo) - margin);
    const Histogram histogram(residuals, base, width);
    Split best = cost_of(histogram, residuals.size(), base, width);
    // Coarser symbols are decoded faster: taken where they cost next to nothing. They begin 127 symbols
    // lower, so that two of the finer ones become one.
    Histogram coarser = histogram;
    while (best.entropy > kFineSymbols && best.width < kBits - 8) {
      Histogram merged = coarser;
      merged.counts.fill(0);
      for (size_t s = 0; s < kOutlierSymbol; ++s) merged.counts[(s + 127) / 2] += coarser.counts[s];
      merged.counts[kOutlierSymbol] = coarser.counts[kOutlierSymbol];
      const int64_t lower =
          wrapped(static_cast<uint64_t>(best.base) - (uint64_t{127} << best.width));
      const Split split = cost_of(merged, residuals.size(), lower, best.width + 1);
      if (split.bits > best.bits + 0.02) break;
      best = split;
      coarser = merged;
    }
    return best;
  }

  static Split best_split(const std::vector<int64_t>& residuals, int64_t center) {
    const auto length_of = [&](int64_t r) {
      const int64_t x = wrapped(static_cast<uint64_t>(r) - static_cast<uint64_t>(center));
      return static_cast<size_t>(std::bit_width(magnitude(x)));
    };
    std::array<uint32_t, 65> counts{};
    for (const int64_t r : residuals) ++counts[length_of(r)];
    // The greatest lengths may be left to outliers.
    Split best;
    size_t outside = 0;
    const double most = kMostOutliers * static_cast<double>(residuals.size());
    for (size_t length = counts.size(); length-- > 0;) {
      if (counts[length] == 0) continue;
      int64_t lo = INT64_MAX, hi = INT64_MIN;
      for (const int64_t r : residuals) {
        const bool inside = length_of(r) <= length;
        lo = inside && r < lo ? r : lo;
        hi = inside && r > hi ? r : hi;
      }
      const Split split = fitted(residuals, lo, hi);
      if (split.bits < best.bits - 0.01) best = split;
      outside += counts[length];
      if (static_cast<double>(outside) > most) break;
    }
    return best;
  }

  // Whole bytes to the entropy coder: pays where low bits are no noise.
  static Split coded_split(const std::vector<int64_t>& residuals, const Split& planes) {
    const int width = std::min((planes.width + 7) / 8 * 8, kBits - 8);
    const int64_t base = planes.base & ~((int64_t{1} << width) - 1);
    const Histogram symbols(residuals, base, width);
    Split split = cost_of(symbols, residuals.size(), base, width);
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

  // The same, if a part of the sample says that it may pay.
  static Split coded_if_promising(const std::vector<int64_t>& residuals, const Split& planes) {
    std::vector<int64_t> some;
    for (size_t i = 0; i < residuals.size(); i += 4) some.push_back(residuals[i]);
    const Split quick = coded_split(some, planes);
    return quick.bits < planes.bits ? coded_split(residuals, planes) : quick;
  }

  static Choice choose(const Sample& sample) {
    const std::vector<int64_t> plain = residuals_of(sample, Predictor::kNone);
    const int64_t center = median_of(plain);
    double length = mean_length(plain, center);
    Choice choice;
    if (length < mean_length(plain, 0) - kClearlyBetter) {
      choice.predictor = Predictor::kMean;
    }
    Split split = best_split(plain, center);
    std::vector<int64_t> residuals;  // of another predictor
    for (const Predictor predictor : {Predictor::kPrevious, Predictor::kLine}) {
      std::vector<int64_t> found = residuals_of(sample, predictor);
      const double found_length = mean_length(found, 0);
      if (found_length >= length - kClearlyBetter) continue;
      // Lengths say too little of words in several heaps: symbols have the last word.
      const Split other = best_split(found, 0);
      if (other.bits >= split.bits - kClearlyBetter) continue;
      length = found_length;
      split = other;
      choice.predictor = predictor;
      residuals = std::move(found);
    }
    if (split.width > 0) {
      const Split coded = coded_if_promising(residuals.empty() ? plain : residuals, split);
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
};

}  // namespace

Choice choose(const Sample& sample, int word_bits) {
  return word_bits == 32 ? Estimator<32>::choose(sample) : Estimator<64>::choose(sample);
}

}  // namespace cgx::bounded
