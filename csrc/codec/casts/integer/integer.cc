// `integer`: integers of a few bits times a scale, which a tensor, a row, a channel or a block shares.
#include "codec/casts/integer/integer.h"

#include "codec/casts/list.h"
#include "codec/formats/parameters.h"

namespace cgx {
namespace {

std::shared_ptr<const Cast> make_integer(const CastConfig& config) {
  using namespace integers;
  const Integers given{.bits = static_cast<int>(config.get("bits")),
                       .scale = static_cast<ScaleOf>(config.get("scale")),
                       .per = static_cast<Per>(config.get("per")),
                       .size = static_cast<size_t>(config.get("size")),
                       .rounding = static_cast<formats::Rounding>(config.get("rounding")),
                       .random_bits = static_cast<int>(config.get("random_bits"))};
  return given.scale == ScaleOf::kMinmax ? make_affine(config, given)
                                         : make_symmetric(config, given);
}

}  // namespace

const CastFamily& integer_cast() {
  using Kind = Parameter::Kind;
  static const auto* family = new CastFamily{
      {.name = "integer",
       .meaning = "Integers of a few bits, times a scale",
       .parameters = formats::with_rounding(
           {{.name = "bits",
             .kind = Kind::kInteger,
             .fallback = "8",
             .low = 2,
             .high = 16,
             .meaning = "Bits of an integer, with its sign"},
            {.name = "scale",
             .kind = Kind::kChoice,
             .fallback = "absmax",
             .choices = "absmax,minmax,power",
             .meaning = "The greatest magnitude over the largest integer; the range over "
                        "its number of steps, with a zero point; or the least power of "
                        "two that holds the greatest magnitude"},
            {.name = "per",
             .kind = Kind::kChoice,
             .fallback = "tensor",
             .choices = "tensor,row,channel,block",
             .meaning = "Which values share a scale"},
            {.name = "size",
             .kind = Kind::kInteger,
             .fallback = "128",
             .low = 1,
             .high = 1 << 20,
             .meaning = "Values of a block"}},
           "integers")},
      {.make = make_integer},
  };
  return *family;
}

}  // namespace cgx
