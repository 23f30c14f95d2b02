// `zscore`: SmaQ's two zones: values near the mean in few bits, the others in more (formulas.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "codec/casts/integer/loops.h"
#include "codec/casts/list.h"
#include "codec/casts/zscore/loops.h"

namespace cgx {
namespace {

enum class Source : uint8_t { kFull, kSampled, kRange };

constexpr size_t kFewest = 8;  // a tensor of fewer values is unchanged
constexpr size_t kSamples = 16;

class ZScoreCast final : public Cast {
 public:
  explicit ZScoreCast(const CastConfig& config)
      : Cast(config),
        bits_{static_cast<int>(config.get("main_bits")),
              static_cast<int>(config.get("outlier_bits"))},
        source_(static_cast<Source>(config.get("statistics"))),
        threshold_(config.real("main_threshold")),
        farthest_(config.real("outlier_threshold")),
        all_positive_(config.get("all_positive") != 0),
        clamp_(config.get("clamp") != 0),
        whole_(formats::Fixed{.word = 24,
                              .fraction = 0,
                              .rounding = static_cast<formats::Rounding>(config.get("rounding")),
                              .random_bits = static_cast<int>(config.get("random_bits"))}) {
    if (bits_[1] < bits_[0]) {
      throw ConfigError(str_of("zscore: outlier_bits=", bits_[1], " with main_bits=", bits_[0],
                               ", allowed: at least main_bits"));
    }
    if (farthest_ <= threshold_) {
      throw ConfigError(str_of("zscore: outlier_threshold=", farthest_, " with main_threshold=",
                               threshold_, ", allowed: above main_threshold"));
    }
  }

  Group group() const override { return Group::kTensor; }
  size_t samples() const override { return source_ == Source::kSampled ? kSamples : 0; }
  bool stochastic() const override { return whole_.kind == formats::Kind::kStochastic; }
  bool idempotent() const override { return false; }
  // Of Gaussian values: the share beyond T is erfc(T / sqrt 2).
  CastSize size() const override {
    const double outliers = std::erfc(threshold_ / std::sqrt(2.0));
    return {.bits = bits_[0] + (bits_[1] - bits_[0]) * outliers, .group_bits = 64};
  }
  double largest() const override { return farthest_; }
  double smallest_step() const override { return 1 / rate(0); }

  Measured join(const Measured& a, const Measured& b) const override {
    const zscore::Moments both = zscore::together(moments_of(a), moments_of(b));
    Measured all{{both.count, both.mean, both.squares}};
    if (source_ != Source::kRange) return all;
    all.of[2] = std::min(a.of[2], b.of[2]);
    all.of[3] = std::max(a.of[3], b.of[3]);
    return all;
  }

 private:
  zscore::Moments moments_of(const Measured& m) const {
    return {m.of[0], m.of[1], source_ == Source::kRange ? 0.0 : m.of[2]};
  }

  template <typename Real>
  Measured measured(const Real* x, size_t n, const integers::Range<Real>& range) const {
    const zscore::Moments found = zscore::moments(x, n);
    if (source_ != Source::kRange) return {{found.count, found.mean, found.squares}};
    return {{found.count, found.mean, static_cast<double>(range.least),
             static_cast<double>(range.greatest)}};
  }
  Measured measure(const float* x, size_t n) const override {
    return measured(
        x, n, source_ == Source::kRange ? integers::loops().range(x, n) : integers::Range<float>{});
  }
  Measured measure(const double* x, size_t n) const override {
    return measured(
        x, n,
        source_ == Source::kRange ? integers::loops().wide_range(x, n) : integers::Range<double>{});
  }

  double sigma_of(const Measured& m) const {
    const double n = m.of[0];
    switch (source_) {
      case Source::kFull:
        return std::sqrt(std::max(m.of[2], 0.0) / (n - 1));
      case Source::kSampled:
        return std::sqrt(std::max(m.of[2], 0.0) / n);
      default:
        return (m.of[3] - m.of[2]) / std::sqrt(2 * std::log(n));
    }
  }

  // The largest integer of a word, and integers a unit of z.
  double most(int zone) const { return std::ldexp(1.0, bits_[zone] - 2) - 1; }
  double rate(int zone) const {
    return most(zone) / (zone == 0 ? threshold_ : farthest_ - threshold_);
  }

  template <typename Real>
  zscore::Zones<Real> zones(float mean, float sigma, const formats::Rule<Real>& whole) const {
    zscore::Zones<Real> zones{};
    zones.mean = static_cast<Real>(mean);
    zones.sigma = static_cast<Real>(sigma);
    zones.threshold = static_cast<Real>(threshold_);
    for (int zone = 0; zone < 2; ++zone) {
      zones.rate[zone] = static_cast<Real>(rate(zone));
      zones.step[zone] = static_cast<Real>(1 / rate(zone));
      const double highest = clamp_ ? most(zone) : 0x1p22;
      zones.most[zone] = as_bits(static_cast<Real>(highest));
    }
    zones.cleared = all_positive_ ? ~typename zscore::Zones<Real>::Word{0} : 0;
    zones.whole = whole;
    return zones;
  }

  void cast(const float* x, size_t n, const Run& run, float* y,
            uint64_t* saturations) const override {
    cast_by(x, n, run, y, saturations, whole_.narrow,
            zscore::loops().narrow[static_cast<int>(whole_.kind)]);
  }
  void cast(const double* x, size_t n, const Run& run, double* y,
            uint64_t* saturations) const override {
    cast_by(x, n, run, y, saturations, whole_.wide,
            zscore::loops().wide[static_cast<int>(whole_.kind)]);
  }

  template <typename Real, typename Loop>
  void cast_by(const Real* x, size_t n, const Run& run, Real* y, uint64_t* saturations,
               const formats::Rule<Real>& whole, Loop loop) const {
    // The mean and sigma that travel with the values.
    const auto mean = static_cast<float>(run.measured.of[1]);
    const auto sigma = static_cast<float>(sigma_of(run.measured));
    // One value has no sigma, which is NaN then.
    if (run.total < kFewest || sigma < std::numeric_limits<float>::min()) {
      if (x != y) std::memcpy(y, x, n * sizeof(Real));
      return;
    }
    if (!std::isfinite(mean) || !std::isfinite(sigma)) {
      std::fill(y, y + n, static_cast<Real>(from_bits(kNan)));
      return;
    }
    if (saturations != nullptr) {
      const double far = farthest_ * static_cast<double>(sigma), middle = static_cast<double>(mean);
      *saturations += formats::count_beyond(x, n, middle - far, middle + far);
    }
    const zscore::Zones<Real> all = zones<Real>(mean, sigma, whole);
    formats::in_draws(run.key, run.index, n,
                      [&](size_t first, size_t some, const formats::Draws& draws) {
                        loop(all, x + first, some, draws, y + first);
                      });
  }

  const int bits_[2];
  const Source source_;
  const double threshold_, farthest_;
  const bool all_positive_, clamp_;
  const formats::Rules whole_;
};

std::shared_ptr<const Cast> make_zscore(const CastConfig& config) {
  return std::make_shared<ZScoreCast>(config);
}

}  // namespace

const CastFamily& zscore_cast() {
  using Kind = Parameter::Kind;
  static const auto* family = new CastFamily{
      {.name = "zscore",
       .meaning = "Distances from the mean in units of sigma, outliers in more bits: SmaQ",
       .parameters = {{.name = "main_bits",
                       .kind = Kind::kInteger,
                       .fallback = "6",
                       .low = 3,
                       .high = 16,
                       .meaning = "Bits of a value near the mean, with a flag and a sign"},
                      {.name = "outlier_bits",
                       .kind = Kind::kInteger,
                       .fallback = "8",
                       .low = 3,
                       .high = 16,
                       .meaning = "Bits of another value, with a flag and a sign"},
                      {.name = "statistics",
                       .kind = Kind::kChoice,
                       .fallback = "full",
                       .choices = "full,sampled,range",
                       .meaning = "Mean and sigma of all values; of 16 of them; or sigma from the "
                                  "range"},
                      {.name = "rounding",
                       .kind = Kind::kChoice,
                       .fallback = "stochastic",
                       .choices = "nearest,zero,stochastic",
                       .meaning = "How values between two codes round"},
                      {.name = "random_bits",
                       .kind = Kind::kInteger,
                       .fallback = "24",
                       .low = 1,
                       .high = 24,
                       .meaning = "Random bits of a value, of stochastic rounding"},
                      {.name = "all_positive",
                       .kind = Kind::kBoolean,
                       .fallback = "0",
                       .meaning = "Negative results become 0"},
                      {.name = "clamp",
                       .kind = Kind::kBoolean,
                       .fallback = "1",
                       .meaning = "An outlier's code stays within its bits; SmaQ's own did not"},
                      {.name = "main_threshold",
                       .kind = Kind::kReal,
                       .fallback = "1",
                       .least = 0,
                       .greatest = 100,
                       .open_least = true,
                       .meaning = "Sigmas from the mean up to which values have main_bits"},
                      {.name = "outlier_threshold",
                       .kind = Kind::kReal,
                       .fallback = "2.5",
                       .least = 0,
                       .greatest = 1000,
                       .open_least = true,
                       .meaning = "Sigmas from the mean up to which codes reach"}}},
      {.make = make_zscore},
  };
  return *family;
}

}  // namespace cgx
