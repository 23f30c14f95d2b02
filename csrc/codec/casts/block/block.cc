// `block`: numbers of a few bits, blocks of which share a scale: the MX formats, NVFP4, fp8 by blocks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/casts/block/loops.h"
#include "codec/casts/list.h"

namespace cgx {
namespace {

blocks::Shape shape_of(const formats::Blocks& of) {
  return {.rules = formats::Rules(of.element),
          .scale_rule = formats::scale_rule_of(of.element.format, of.rounding),
          .scale = of.scale,
          .size = of.size,
          .rows = of.rows,
          .e4m3 = formats::rule_of<float>(
              {.format = {4, 3, formats::Variant::kFn}, .overflow = formats::Overflow::kSaturate})};
}

class BlockCast final : public Cast {
 public:
  BlockCast(const CastConfig& config, const formats::Blocks& given)
      : Cast(config), blocks_(given), shape_(shape_of(given)) {}

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

  bool set_call(casting::on_gpu::Call& call) const override {
    call.narrow = shape_.rules.narrow;
    call.wide = shape_.rules.wide;
    call.kind = static_cast<uint8_t>(shape_.rules.kind);
    call.scale_rule = shape_.scale_rule;
    call.e4m3 = shape_.e4m3;
    call.scale = static_cast<uint8_t>(shape_.scale);
    call.grid.size = static_cast<uint32_t>(blocks_.size);
    call.grid.block_rows = static_cast<uint32_t>(blocks_.rows);
    call.work = casting::on_gpu::Work::kBlocks;
    return true;
  }

  Measured join(const Measured& before, const Measured& after) const override {
    return {{greater(before.of[0], after.of[0])}};
  }

 private:
  // NaN counts as the greatest.
  static double greater(double a, double b) { return a > b || std::isnan(a) ? a : b; }

  Measured measure(const float* x, size_t n) const override {
    return {{static_cast<double>(formats::greatest(x, n))}};
  }
  Measured measure(const double* x, size_t n) const override { return {{formats::greatest(x, n)}}; }

  double scale_of_tensor(const Run& run) const {
    if (group() == Group::kNone) return 1;
    const double amax = run.measured.of[0];
    if (!(amax < std::numeric_limits<double>::infinity())) return std::nan("");
    return static_cast<double>(formats::scale_of_tensor(shape_.scale_rule, amax));
  }

  void cast(const float* x, size_t n, const Run& run, float* y,
            uint64_t* saturations) const override {
    const auto loop = blocks::loops().narrow[static_cast<int>(shape_.rules.kind)];
    loop(shape_,
         {x, y, n, run.columns, run.key, run.index, scale_of_tensor(run), 0.0, saturations});
  }
  void cast(const double* x, size_t n, const Run& run, double* y,
            uint64_t* saturations) const override {
    const auto loop = blocks::loops().wide[static_cast<int>(shape_.rules.kind)];
    loop(shape_,
         {x, y, n, run.columns, run.key, run.index, scale_of_tensor(run), 0.0, saturations});
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
