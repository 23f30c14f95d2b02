// What a configuration of integers says.
#pragma once

#include "codec/cast.h"
#include "codec/formats/fixed.h"

namespace cgx::integers {

enum class ScaleOf : uint8_t { kAbsmax, kMinmax, kPower };
enum class Per : uint8_t { kTensor, kRow, kChannel, kBlock };

struct Integers {
  int bits = 8;
  ScaleOf scale = ScaleOf::kAbsmax;
  Per per = Per::kTensor;
  size_t size = 128;  // values of a block
  formats::Rounding rounding = formats::Rounding::kNearest;
  int random_bits = 24;
};

/// scale: absmax or power, symmetric around 0.
std::shared_ptr<const Cast> make_symmetric(const CastConfig& config, const Integers& integers);
/// scale: minmax, with a zero point.
std::shared_ptr<const Cast> make_affine(const CastConfig& config, const Integers& integers);

/// What both have in common: which values share a scale.
class IntegerCast : public Cast {
 public:
  IntegerCast(const CastConfig& config, const Integers& integers)
      : Cast(config), integers_(integers) {}

  size_t block() const override { return of_blocks() ? integers_.size : 1; }
  Group group() const override {
    return of_blocks()                     ? Group::kNone
           : integers_.per == Per::kTensor ? Group::kTensor
                                           : Group::kRun;
  }
  bool by_channels() const override { return integers_.per == Per::kChannel; }
  bool stochastic() const override { return integers_.rounding == formats::Rounding::kStochastic; }
  // The extremes may change, and with them the scale.
  bool idempotent() const override { return false; }
  double smallest_step() const override { return 1; }

 protected:
  bool of_blocks() const { return integers_.per == Per::kBlock; }
  const Integers& integers() const { return integers_; }
  // Rows and channels are blocks as long as they are.
  void set_blocks(casting::on_gpu::Call& call) const {
    const bool whole = integers_.per == Per::kRow || integers_.per == Per::kChannel;
    call.grid.size = whole ? 0 : static_cast<uint32_t>(integers_.size);
    call.grid.block_rows = 1;
    call.of_tensor = integers_.per == Per::kTensor;
    call.work = casting::on_gpu::Work::kBlocks;
  }
  CastSize size_of_scales(double bits) const {
    return {.bits = static_cast<double>(integers_.bits),
            .block_bits = of_blocks() ? bits : 0,
            .group_bits = of_blocks() ? 0 : bits};
  }

 private:
  const Integers integers_;
};

}  // namespace cgx::integers
