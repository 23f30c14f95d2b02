// `zscore`: SmaQ's two zones: values near the mean in few bits, the others in more (formulas.h).
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "codec/casts/integer/loops.h"
#include "codec/casts/list.h"
#include "codec/casts/zscore/loops.h"

namespace cgx {
namespace {

enum class Source : uint8_t { kFull, kSampled, kRange };

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
                              .random_bits = static_cast<int>(config.get("random_bits"))}),
        narrow_(zones_of(whole_.narrow)),
        wide_(zones_of(whole_.wide)) {
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
    return zscore::joined(source_ == Source::kRange, a, b);
  }

  bool set_call(casting::on_gpu::Call& call) const override {
    call.kind = static_cast<uint8_t>(whole_.kind);
    call.spread = spread_of(call.values);
    call.narrow_zones = narrow_;
    call.wide_zones = wide_;
    call.samples = samples();
    call.farthest = farthest_;
    call.work = casting::on_gpu::Work::kZScore;
    return true;
  }

 private:
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

  // Of a tensor of `total` values.
  zscore::Spread spread_of(size_t total) const {
    const auto n = static_cast<double>(total);
    switch (source_) {
      case Source::kFull:
        return {false, n - 1};
      case Source::kSampled:
        return {false, static_cast<double>(std::min(total, kSamples))};
      default:
        return {true, std::sqrt(2 * std::log(n))};
    }
  }

  // The largest integer of a word, and integers a unit of z.
  double most(int zone) const { return std::ldexp(1.0, bits_[zone] - 2) - 1; }
  double rate(int zone) const {
    return most(zone) / (zone == 0 ? threshold_ : farthest_ - threshold_);
  }

  template <typename Real>
  zscore::Zones<Real> zones_of(const formats::Rule<Real>& whole) const {
    zscore::Zones<Real> zones{};
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
    cast_by(x, n, run, y, saturations, narrow_,
            zscore::loops().narrow[static_cast<int>(whole_.kind)]);
  }
  void cast(const double* x, size_t n, const Run& run, double* y,
            uint64_t* saturations) const override {
    cast_by(x, n, run, y, saturations, wide_, zscore::loops().wide[static_cast<int>(whole_.kind)]);
  }

  template <typename Real, typename Loop>
  void cast_by(const Real* x, size_t n, const Run& run, Real* y, uint64_t* saturations,
               const zscore::Zones<Real>& zones, Loop loop) const {
    const zscore::Spread spread = spread_of(run.total);
    const zscore::Centre centre = zscore::centre_of(spread, run.measured);
    const casting::Way way = zscore::way_of(centre, run.total);
    if (way != casting::Way::kCast) return casting::without_cast(way, x, n, y);
    if (saturations != nullptr) {
      const double far = farthest_ * static_cast<double>(centre.sigma);
      const auto middle = static_cast<double>(centre.mean);
      *saturations += formats::count_beyond(x, n, middle - far, middle + far);
    }
    formats::in_draws(run.key, run.index, n,
                      [&](size_t first, size_t some, const formats::Draws& draws) {
                        loop(zones, centre, x + first, some, draws, y + first);
                      });
  }

  const int bits_[2];
  const Source source_;
  const double threshold_, farthest_;
  const bool all_positive_, clamp_;
  const formats::Rules whole_;
  const zscore::Zones<float> narrow_;
  const zscore::Zones<double> wide_;
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
