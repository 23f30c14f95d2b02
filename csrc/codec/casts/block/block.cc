// `block`: numbers of a few bits, blocks of which share a scale: the MX formats, NVFP4, fp8 by blocks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/casts/block/loops.h"
#include "codec/casts/list.h"

namespace cgx {
namespace {

constexpr double kLargestE4m3 = 448;

class BlockCast final : public Cast {
 public:
  BlockCast(const CastConfig& config, const formats::Blocks& given)
      : Cast(config), blocks_(given), shape_(given) {}

  size_t block() const override { return blocks_.size; }
  size_t block_rows() const override { return blocks_.rows; }
  Group group() const override {
    return blocks_.scale == formats::Scale::kE4m3 ? Group::kTensor : Group::kNone;
  }
  bool stochastic() const override { return shape_.rules.kind == formats::Kind::kStochastic; }
  // The greatest magnitude may become less, and with it the scale.
  bool idempotent() const override { return false; }
  CastSize size() const override {
    const bool wide = blocks_.scale == formats::Scale::kFloat32;
    return {.bits = static_cast<double>(blocks_.element.format.bits()),
            .block_bits = wide ? 32.0 : 8.0,
            .group_bits = blocks_.scale == formats::Scale::kE4m3 ? 32.0 : 0.0};
  }
  double largest() const override { return blocks_.element.format.largest(); }
  double smallest_step() const override {
    return std::ldexp(1.0, blocks_.element.format.step_exponent());
  }

  Measured join(const Measured& before, const Measured& after) const override {
    return {{greater(before.of[0], after.of[0])}};
  }

 private:
  // NaN counts as the greatest.
  static double greater(double a, double b) { return a > b || std::isnan(a) ? a : b; }

  template <typename Real>
  static Measured amax(const Real* x, size_t n) {
    using Type = formats::WordOf<Real>;
    typename Type::Signed most = 0;
    for (size_t i = 0; i < n; ++i) {
      most = std::max(most, static_cast<typename Type::Signed>(as_bits(x[i]) & ~Type::kSign));
    }
    return {{static_cast<double>(formats::real_of_word(static_cast<typename Type::Word>(most)))}};
  }
  Measured measure(const float* x, size_t n) const override { return amax(x, n); }
  Measured measure(const double* x, size_t n) const override { return amax(x, n); }

  // What the tensor's greatest magnitude divides by: its block then has the largest scale, and the value the
  // largest element.
  double scale_of_tensor(const Run& run) const {
    if (group() == Group::kNone) return 1;
    const double amax = run.measured.of[0];
    if (std::isnan(amax)) return amax;
    const auto scale = static_cast<float>(amax / (kLargestE4m3 * largest()));
    return amax == 0 ? 1 : std::max(static_cast<double>(scale), 0x1p-126);
  }

  void cast(const float* x, size_t n, const Run& run, float* y,
            uint64_t* saturations) const override {
    const auto loop = blocks::loops().narrow[static_cast<int>(shape_.rules.kind)];
    loop(shape_, {x, y, n, run.columns, run.key, run.index, scale_of_tensor(run), saturations});
  }
  void cast(const double* x, size_t n, const Run& run, double* y,
            uint64_t* saturations) const override {
    const auto loop = blocks::loops().wide[static_cast<int>(shape_.rules.kind)];
    loop(shape_, {x, y, n, run.columns, run.key, run.index, scale_of_tensor(run), saturations});
  }

  const formats::Blocks blocks_;
  const blocks::Shape shape_;
};

std::shared_ptr<const Cast> make_block(const CastConfig& config) {
  return std::make_shared<BlockCast>(config, formats::blocks_of(config));
}

}  // namespace

const CastFamily& block_cast() {
  static const auto* family = new CastFamily{
      {.name = "block",
       .meaning = "Numbers with a sign, an exponent and a mantissa, blocks of which share a scale",
       .parameters = formats::block_parameters()},
      {.make = make_block},
  };
  return *family;
}

}  // namespace cgx
