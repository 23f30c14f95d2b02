#include "codec/families/float/parameters.h"

#include <algorithm>
#include <cctype>

#include "codec/formats/parameters.h"
#include "codec/formats/scales.h"

namespace cgx::rounded {
namespace {

// Settings that other codecs have, too, keep their variables.
std::string variable_of(const std::string& name) {
  const bool shared = name == "rounding" || name == "seed";
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return (shared ? "CGX_COMPRESSION_" : "CGX_FORMAT_") + upper;
}

Parameter seed() {
  return {.name = "seed",
          .variable = variable_of("seed"),
          .kind = Parameter::Kind::kInteger,
          .fallback = "0",
          .low = 0,
          .high = INT64_MAX,
          .meaning = "Seed of random numbers of stochastic rounding"};
}

/// A parameter of casts as one of codecs. `whose`: of which ones, for tables of settings.
Parameter on_wire(Parameter p, const std::string& whose) {
  p.variable = variable_of(p.name);
  // A group has one rounding, of all its codecs.
  p.per_call = p.name != "rounding";
  if (p.name == "rounding") return p;
  const bool both = p.name == "random_bits";
  p.meaning = (both ? std::string("`float` and `block`") : whose) + ": " + p.meaning;
  return p;
}

Parameter of_block(const std::vector<Parameter>& all, const std::string& name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Parameter& p) { return p.name == name; });
  return on_wire(*found, "`block`");
}

}  // namespace

std::vector<Parameter> parameters() {
  std::vector<Parameter> all = formats::casting_parameters(4, 3, "ieee", true);
  for (Parameter& p : all) {
    p = on_wire(p, "`float`");
    if (p.name == "mantissa") p.high = 14;  // of 16 bits
    // Those in which a NaN or an infinity is a code.
    if (p.name == "variant") p.choices = "ieee,fn,fnuz,p3109";
  }
  all.push_back(seed());
  return all;
}

std::vector<Parameter> block_parameters() {
  const std::vector<Parameter> casts = formats::block_parameters();
  return {{.name = "format",
           .variable = variable_of("format"),
           .kind = Parameter::Kind::kChoice,
           .fallback = "mxfp8_e4m3",
           .choices = "mxfp8_e4m3,mxfp8_e5m2,mxfp6_e3m2,mxfp6_e2m3,mxfp4,mxint8,fp8_block128",
           .per_call = true,
           .meaning = "`block`: format of a block's values and of the scale that they share"},
          of_block(casts, "scale_rounding"),
          of_block(casts, "rounding"),
          of_block(casts, "random_bits"),
          seed()};
}

}  // namespace cgx::rounded
