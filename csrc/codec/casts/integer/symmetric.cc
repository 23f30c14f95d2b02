// Integers from -(2^(bits - 1) - 1) to 2^(bits - 1) - 1, times a scale by which the greatest magnitude is the
// largest of them, or, of a power of two, at most that.
#include <cmath>

#include "codec/casts/block/loops.h"
#include "codec/casts/integer/integer.h"

namespace cgx::integers {
namespace {

formats::Fixed elements(const Integers& of) {
  return {.word = of.bits,
          .fraction = 0,
          .symmetric = true,
          .rounding = of.rounding,
          .random_bits = of.random_bits};
}

blocks::Shape shape_of_integers(const Integers& of) {
  const formats::Fixed element = elements(of);
  const bool power = of.scale == ScaleOf::kPower;
  return {
      .rules = formats::Rules(element),
      .scale_rule = formats::scale_rule_of(element.largest(), 0, formats::ScaleRounding::kRceil),
      .scale = power ? formats::Scale::kE8m0 : formats::Scale::kFloat32,
      .size = of.size,
      .measured = of.per != Per::kBlock};
}

class Symmetric final : public IntegerCast {
 public:
  Symmetric(const CastConfig& config, const Integers& given)
      : IntegerCast(config, given), shape_(shape_of_integers(given)) {}

  CastSize size() const override {
    return size_of_scales(integers().scale == ScaleOf::kPower ? 8 : 32);
  }
  double largest() const override { return elements(integers()).largest(); }

  Measured join(const Measured& a, const Measured& b) const override {
    // NaN counts as the greatest.
    return a.of[0] > b.of[0] || std::isnan(a.of[0]) ? a : b;
  }

  bool set_call(casting::on_gpu::Call& call) const override {
    call.narrow = shape_.rules.narrow;
    call.wide = shape_.rules.wide;
    call.kind = static_cast<uint8_t>(shape_.rules.kind);
    call.scale_rule = shape_.scale_rule;
    call.scale = static_cast<uint8_t>(shape_.scale);
    set_blocks(call);
    return true;
  }

 private:
  Measured measure(const float* x, size_t n) const override {
    return {{static_cast<double>(formats::greatest(x, n))}};
  }
  Measured measure(const double* x, size_t n) const override { return {{formats::greatest(x, n)}}; }

  void cast(const float* x, size_t n, const Run& run, float* y,
            uint64_t* saturations) const override {
    const auto loop = blocks::loops().narrow[static_cast<int>(shape_.rules.kind)];
    loop(shape_, {x, y, n, n, run.key, run.index, 1.0, run.measured.of[0], saturations});
  }
  void cast(const double* x, size_t n, const Run& run, double* y,
            uint64_t* saturations) const override {
    const auto loop = blocks::loops().wide[static_cast<int>(shape_.rules.kind)];
    loop(shape_, {x, y, n, n, run.key, run.index, 1.0, run.measured.of[0], saturations});
  }

  const blocks::Shape shape_;
};

}  // namespace

std::shared_ptr<const Cast> make_symmetric(const CastConfig& config, const Integers& integers) {
  return std::make_shared<Symmetric>(config, integers);
}

}  // namespace cgx::integers
