#include "codec/formats/scales.h"

#include "base/error.h"

namespace cgx::formats {

std::vector<Parameter> block_parameters() {
  using Kind = Parameter::Kind;
  std::vector<Parameter> all = casting_parameters(4, 3, "fn", false);
  all.push_back({.name = "size",
                 .kind = Kind::kInteger,
                 .fallback = "32",
                 .low = 1,
                 .high = 1 << 20,
                 .meaning = "Values of a row that share a scale"});
  all.push_back({.name = "rows",
                 .kind = Kind::kInteger,
                 .fallback = "1",
                 .low = 1,
                 .high = 1 << 12,
                 .meaning = "Rows whose values share a scale"});
  all.push_back({.name = "scale",
                 .kind = Kind::kChoice,
                 .fallback = "e8m0",
                 .choices = "e8m0,e4m3,fp32",
                 .meaning =
                     "Format of the scale: a power of two; or e4m3, times one fp32 scale of the "
                     "tensor; or fp32"});
  all.push_back({.name = "scale_rounding",
                 .kind = Kind::kChoice,
                 .fallback = "floor",
                 .choices = "floor,ceil,even,rceil",
                 .meaning =
                     "How an e8m0 scale follows from the greatest magnitude: the power of two "
                     "below or above it, of its rounded value, or the least without saturation"});
  return all;
}

Blocks blocks_of(const Config& config) {
  Blocks blocks;
  blocks.element = casting_of(config);
  blocks.size = static_cast<size_t>(config.get("size"));
  blocks.rows = static_cast<size_t>(config.get("rows"));
  blocks.scale = static_cast<Scale>(config.get("scale"));
  blocks.rounding = static_cast<ScaleRounding>(config.get("scale_rounding"));
  const Variant variant = blocks.element.format.variant;
  if (variant == Variant::kCpd || variant == Variant::kScale) {
    throw ConfigError(str_of(config.name(), ": variant=", config.text("variant"),
                             ", allowed for elements of blocks: ieee, fn, finite, fnuz, p3109"));
  }
  if (blocks.scale != Scale::kE8m0 && blocks.rounding != ScaleRounding::kFloor) {
    throw ConfigError(str_of(config.name(), ": scale_rounding=", config.text("scale_rounding"),
                             " with scale=", config.text("scale"), ", allowed: only with e8m0"));
  }
  return blocks;
}

}  // namespace cgx::formats
