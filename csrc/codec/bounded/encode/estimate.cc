#include "codec/bounded/encode/estimate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "codec/bounded/logarithm.h"
#include "codec/bounded/loops/loops.h"

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
// Below this entropy of a symbol, tables for neighbourhoods may pay whatever the sample says.
constexpr double kAlike = 2.25;
// The same where this share of the symbols is the same one: a Huffman code has no part of a bit for it.
constexpr double kSame = 0.3;
// Zstandard does not code bytes of which the most frequent one is rarer than 1 in 128. So a block of about
// equally frequent symbols may use no more than kMostEven of them. Symbols count as equally frequent if
// their entropy is within kEven bits of the logarithm of their number.
constexpr double kMostEven = 110, kEven = 0.2;
// Tables for neighbourhoods may pay if a symbol's size correlates with the mean size of the few symbols
// before it by at least this much. One sample of independent symbols in 300 does.
constexpr double kHeaped = 0.09;
constexpr size_t kBefore = 4;

using Counts = std::array<uint32_t, kSymbols>;

// -sum p log2 p of counts, with the bias of few samples mended (Miller, 1955).
double entropy_of(const Counts& counts, size_t total) {
  if (total == 0) return 0;
  double sum = 0;
  size_t seen = 0;
  // Most symbols of a sample lie together: what is skipped here would add 0.
  constexpr size_t kGroup = 4;
  for (size_t i = 0; i < counts.size(); i += kGroup) {
    uint32_t any = 0;
    for (size_t k = 0; k < kGroup; ++k) any |= counts[i + k];
    if (any == 0) continue;
    for (size_t k = 0; k < kGroup; ++k) {
      sum += weight_of(counts[i + k]);
      seen += counts[i + k] != 0 ? 1 : 0;
    }
  }
  const double n = static_cast<double>(total);
  constexpr double kLog2 = 0.6931471805599453;
  return (weight_of(static_cast<uint32_t>(total)) - sum) / n +
         (static_cast<double>(seen) - 1) / (2 * n * kLog2);
}

struct Split {
  int width = 0;
  int64_t base = 0;
  double bits = 1e9, entropy = 0;
  double same = 0;  // the share of the most frequent symbol
};

// In words of kBits bits, in which differences wrap.
template <int kBits>
struct Estimator {
  using Word = std::conditional_t<kBits == 32, int32_t, int64_t>;
  using U = std::make_unsigned_t<Word>;
  using Words = std::vector<Word>;

  static int64_t wrapped(uint64_t x) { return static_cast<Word>(static_cast<U>(x)); }

  // Residuals of the sample, all predictors of the same places: runs without their first two values.
  static Words residuals_of(const Sample& sample, Predictor predictor) {
    const std::vector<int64_t>& words = sample.words;
    Words out(words.size());
    Word* at = out.data();
    const auto each = [&](const auto& residual) {
      for (size_t run = 0; run < words.size(); run += kRun) {
        const int64_t* w = words.data() + run;
        const size_t length = std::min<size_t>(kRun, words.size() - run);
        if (length <= 2) break;
        for (size_t i = 2; i < length; ++i) {
          at[i - 2] = static_cast<Word>(
              residual(static_cast<U>(w[i]), static_cast<U>(w[i - 1]), static_cast<U>(w[i - 2])));
        }
        at += length - 2;
      }
    };
    if (predictor == Predictor::kPrevious) {
      each([](U a, U b, U) { return static_cast<U>(a - b); });
    } else if (predictor == Predictor::kLine) {
      each([](U a, U b, U c) { return static_cast<U>(a - 2 * b + c); });
    } else {
      each([](U a, U, U) { return a; });
    }
    if (at == out.data()) {
      for (const int64_t word : words) *at++ = static_cast<Word>(word);
    }
    out.resize(static_cast<size_t>(at - out.data()));
    return out;
  }

  // Of a few residuals.
  static int64_t median_of(const Words& values) {
    Words some;
    const size_t step = std::max<size_t>(1, values.size() / 127);
    for (size_t i = 0; i < values.size(); i += step) some.push_back(values[i]);
    // By bisection: sorting is a row of branches that nobody can predict.
    const auto up_to = [&](Word limit) {
      U count = 0;
      for (const Word value : some) count += value <= limit ? 1 : 0;
      return static_cast<size_t>(count);
    };
    const auto [least, greatest] = std::minmax_element(some.begin(), some.end());
    Word lo = *least, hi = *greatest;
    while (lo < hi) {
      const U half = (static_cast<U>(hi) - static_cast<U>(lo)) / 2;
      const Word middle = static_cast<Word>(static_cast<U>(lo) + half);
      if (up_to(middle) > some.size() / 2) {
        hi = middle;
      } else {
        lo = static_cast<Word>(middle + 1);
      }
    }
    return lo;
  }

  static Words lengths_of(const Words& residuals, int64_t center) {
    Words lengths(residuals.size());
    word_loops<Word>().lengths(residuals.data(), residuals.size(), static_cast<Word>(center),
                               lengths.data());
    return lengths;
  }

  // Mean length in bits: enough to see which predictors are worth a closer look.
  static double mean_of(const Words& lengths) {
    Word sum = 0;  // a block has 2^16 of them
    for (const Word length : lengths) sum += length;
    return static_cast<double>(sum) / static_cast<double>(lengths.size());
  }

  // How often each symbol occurs. Two tables, since neighbours are often alike, and a count that was
  // just written is slow to read.
  static Counts histogram_of(const Words& residuals, int64_t base, int width) {
    Counts counts{}, others{};
    const auto symbol = [&](Word r) {
      const U u = static_cast<U>(r) - static_cast<U>(base);
      return std::min<U>(u >> width, kOutlierSymbol);
    };
    size_t i = 0;
    for (; i + 2 <= residuals.size(); i += 2) {
      ++counts[symbol(residuals[i])];
      ++others[symbol(residuals[i + 1])];
    }
    if (i < residuals.size()) ++counts[symbol(residuals[i])];
    for (size_t s = 0; s < kSymbols; ++s) counts[s] += others[s];
    return counts;
  }

  // Of symbols that are twice as wide, and begin 127 of these symbols lower.
  static Counts merged(const Counts& counts) {
    Counts out{};
    out[63] = counts[0];
    for (size_t k = 0; k < 127; ++k) out[64 + k] = counts[2 * k + 1] + counts[2 * k + 2];
    out[kOutlierSymbol] = counts[kOutlierSymbol];
    return out;
  }

  // What residuals cost with symbols of that width, the lowest at `base`.
  static Split cost_of(const Counts& counts, size_t n, int64_t base, int width) {
    Split split{width, base, 0, entropy_of(counts, n)};
    split.same = static_cast<double>(*std::max_element(counts.begin(), counts.end())) /
                 static_cast<double>(n);
    const auto used = static_cast<double>(
        std::count_if(counts.begin(), counts.end(), [](uint32_t count) { return count != 0; }));
    if (used > kMostEven && split.entropy > std::log2(used) - kEven) split.entropy = 8;
    const double outliers = counts[kOutlierSymbol];
    split.bits = width + split.entropy + outliers / static_cast<double>(n) * kBits;
    return split;
  }

  // The narrowest symbols whose range covers [lo, hi] of the sample, and as much outside of it as a
  // whole block may show.
  static Split fitted(const Words& residuals, int64_t lo, int64_t hi) {
    const uint64_t span = static_cast<uint64_t>(hi) - static_cast<uint64_t>(lo);
    const uint64_t room = span + span / 4 + 2;
    int width = 0;
    while (width < kBits - 8 && (room < span || (room >> width) > 252)) ++width;
    const uint64_t covered = uint64_t{255} << width;
    const uint64_t margin = covered > span ? (covered - span) / 2 : 0;
    const int64_t base = wrapped(static_cast<uint64_t>(lo) - margin);
    Counts counts = histogram_of(residuals, base, width);
    Split best = cost_of(counts, residuals.size(), base, width);
    // Coarser symbols are decoded faster: taken where they cost next to nothing. They begin 127 symbols
    // lower, so that two of the finer ones become one.
    while (best.entropy > kFineSymbols && best.width < kBits - 8) {
      counts = merged(counts);
      const int64_t lower =
          wrapped(static_cast<uint64_t>(best.base) - (uint64_t{127} << best.width));
      const Split split = cost_of(counts, residuals.size(), lower, best.width + 1);
      if (split.bits > best.bits + 0.02) break;
      best = split;
    }
    return best;
  }

  // lengths: of the residuals, from a center.
  static Split best_split(const Words& residuals, const Words& lengths) {
    std::array<uint32_t, 65> counts{};
    for (const Word length : lengths) ++counts[static_cast<size_t>(length)];
    // The greatest lengths may be left to outliers.
    Split best;
    size_t outside = 0;
    const double most = kMostOutliers * static_cast<double>(residuals.size());
    for (size_t length = counts.size(); length-- > 0;) {
      if (counts[length] == 0) continue;
      const auto [lo, hi] = word_loops<Word>().extremes(
          residuals.data(), lengths.data(), residuals.size(), static_cast<Word>(length));
      const Split split = fitted(residuals, lo, hi);
      if (split.bits < best.bits - 0.01) best = split;
      outside += counts[length];
      if (static_cast<double>(outside) > most) break;
    }
    return best;
  }

  // Whole bytes to the entropy coder: pays where low bits are no noise.
  static Split coded_split(const Words& residuals, const Split& planes) {
    const int width = std::min((planes.width + 7) / 8 * 8, kBits - 8);
    const int64_t base = planes.base & ~((int64_t{1} << width) - 1);
    Split split = cost_of(histogram_of(residuals, base, width), residuals.size(), base, width);
    double bits = split.bits - width;
    for (int at = 0; at < width; at += 8) {
      Counts counts{};
      for (const Word r : residuals) {
        ++counts[((static_cast<U>(r) - static_cast<U>(base)) >> at) & 255];
      }
      bits += std::min(8.0, entropy_of(counts, residuals.size()));
    }
    split.bits = bits;
    return split;
  }

  // The same, if a part of the sample says that it may pay.
  static Split coded_if_promising(const Words& residuals, const Split& planes) {
    Words some;
    some.reserve(residuals.size() / 4 + 1);
    for (size_t i = 0; i < residuals.size(); i += 4) some.push_back(residuals[i]);
    const Split quick = coded_split(some, planes);
    return quick.bits < planes.bits ? coded_split(residuals, planes) : quick;
  }

  // The correlation of a symbol's size with the mean of those before it. Runs are two shorter than
  // those of the sample.
  static double heaped(const Words& residuals, const Split& split) {
    const U center = static_cast<U>(median_of(residuals)) - static_cast<U>(split.base);
    const auto middle = static_cast<int64_t>(std::min<U>(center >> split.width, kOutlierSymbol));
    std::vector<double> sizes;
    sizes.reserve(residuals.size());
    for (const Word r : residuals) {
      const U symbol = (static_cast<U>(r) - static_cast<U>(split.base)) >> split.width;
      const auto place = static_cast<int64_t>(std::min<U>(symbol, kOutlierSymbol));
      sizes.push_back(static_cast<double>(std::abs(place - middle)));
    }
    double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
    for (size_t run = 0; run < sizes.size(); run += kRun - 2) {
      const size_t end = std::min<size_t>(run + kRun - 2, sizes.size());
      for (size_t i = run + kBefore; i < end; ++i) {
        double before = 0;
        for (size_t k = 1; k <= kBefore; ++k) before += sizes[i - k];
        n += 1;
        x += before;
        y += sizes[i];
        xx += before * before;
        yy += sizes[i] * sizes[i];
        xy += before * sizes[i];
      }
    }
    const double spread = (n * xx - x * x) * (n * yy - y * y);
    return spread > 0 ? (n * xy - x * y) / std::sqrt(spread) : 0;
  }

  static SymbolForm choose(const Sample& sample) {
    const Words plain = residuals_of(sample, Predictor::kNone);
    const Words lengths = lengths_of(plain, median_of(plain));
    double length = mean_of(lengths);
    SymbolForm form;
    if (length < mean_of(lengths_of(plain, 0)) - kClearlyBetter) {
      form.predictor = Predictor::kMean;
    }
    Split split = best_split(plain, lengths);
    Words residuals;  // of another predictor
    for (const Predictor predictor : {Predictor::kPrevious, Predictor::kLine}) {
      Words found = residuals_of(sample, predictor);
      const Words found_lengths = lengths_of(found, 0);
      const double found_length = mean_of(found_lengths);
      // Where differences are longer than the values, differences of these are longer still.
      if (predictor == Predictor::kPrevious && found_length > length + kClearlyBetter) break;
      if (found_length >= length - kClearlyBetter) continue;
      // Lengths say too little of words in several heaps: symbols have the last word.
      const Split other = best_split(found, found_lengths);
      if (other.bits >= split.bits - kClearlyBetter) continue;
      length = found_length;
      split = other;
      form.predictor = predictor;
      residuals = std::move(found);
    }
    if (split.width > 0) {
      const Split coded = coded_if_promising(residuals.empty() ? plain : residuals, split);
      if (coded.bits < split.bits - 0.1) {
        split = coded;
        form.low = LowBits::kCoded;
      }
    }
    form.width = split.width;
    form.base = split.base;
    form.bits = split.bits;
    form.entropy = split.entropy;
    form.in_heaps = form.entropy < kAlike || split.same > kSame ||
                    heaped(residuals.empty() ? plain : residuals, split) > kHeaped;
    return form;
  }
};

}  // namespace

SymbolForm choose(const Sample& sample, int word_bits) {
  return word_bits == 32 ? Estimator<32>::choose(sample) : Estimator<64>::choose(sample);
}

}  // namespace cgx::bounded
