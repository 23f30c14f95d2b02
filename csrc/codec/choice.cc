#include "codec/choice.h"

#include <algorithm>

#include "base/error.h"

namespace cgx {
namespace {

using Kind = Parameter::Kind;

Parameter bits_setting() {
  return {
      .name = "bits",
      .variable = "CGX_COMPRESSION_QUANTIZATION_BITS",
      .kind = Kind::kInteger,
      .fallback = std::to_string(kExactBits),
      .low = 1,
      .high = kExactBits,
      .per_call = true,
      .meaning =
          "Bits per value. 1 to 8 compress; 16 sends fp32 as bf16 or fp16; all others are exact"};
}

Parameter name_setting() {
  return {.name = "codec",
          .variable = "CGX_COMPRESSION_TYPE",
          .kind = Kind::kChoice,
          .fallback = "maxmin",
          .choices = codec_names(),
          .meaning = "Codec; bf16 and fp16 need `bits` 16, which selects one of them anyway"};
}

std::vector<Parameter> collect() {
  std::vector<Parameter> all = {bits_setting(), name_setting()};
  for (const Family* family : families()) {
    for (const Parameter& own : family->parameters) {
      const auto known = std::find_if(all.begin(), all.end(),
                                      [&](const Parameter& p) { return p.name == own.setting(); });
      if (known == all.end()) {
        all.push_back(own);
        all.back().name = own.setting();
        all.back().option.clear();
        continue;
      }
      if (own.name == "bits") continue;
      known->low = std::min(known->low, own.low);
      known->high = std::max(known->high, own.high);
      for (const std::string& choice : split(own.choices)) {
        const std::vector<std::string> have = split(known->choices);
        if (std::find(have.begin(), have.end(), choice) == have.end()) {
          known->choices += "," + choice;
        }
      }
    }
  }
  return all;
}

}  // namespace

const std::vector<Parameter>& codec_settings() {
  // Again after add_family(). Never destroyed, since references to it are kept.
  static auto* all = new std::vector<Parameter>(collect());
  static size_t known = families().size();
  if (known != families().size()) {
    known = families().size();
    all = new std::vector<Parameter>(collect());
  }
  return *all;
}

std::shared_ptr<const Codec> choose_codec(
    const std::function<std::string(const std::string&)>& setting) {
  const int64_t bits = std::stoll(setting("bits"));
  if (is_exact(bits)) return raw_codec();
  const std::string name = setting("codec");
  CodecConfig config = config_named(name);
  const bool half = config.family().name == "half";
  if (bits == kHalfBits && !half) config = config_named("half");
  const Family& family = config.family();
  if (!family.keeps_zeros && !family.has("exact_zeros") && setting("exact_zeros") == "1") {
    throw ConfigError(
        str_of("exact_zeros=1 with codec='", name,
               "' is not allowed: its rotation spreads the other values of a block over "
               "the zeros; allowed: codec='maxmin', 'float' or 'block', or bits from 16 on"));
  }
  for (const Parameter& parameter : family.parameters) {
    // Its name says which of the variants it is.
    if (half && parameter.name == family.variant) continue;
    config.set(parameter.name, setting(parameter.setting()));
  }
  return make_codec(config);
}

}  // namespace cgx
