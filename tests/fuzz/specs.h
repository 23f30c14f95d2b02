// Codecs, dtypes and layers as an input describes them. A family is fuzzed because it is in the
// engine's list: its parameters are drawn from their declaration.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parameter.h"
#include "codec/codec.h"
#include "reduce/plan/plan.h"
#include "targets.h"

namespace cgx::native {

inline DType take_dtype(Input& input) { return static_cast<DType>(input.below(3)); }

/// A number that the parameter may have: of a long range mostly small ones, and its ends.
inline int64_t take_number(Input& input, const Parameter& p) {
  if (p.kind == Parameter::Kind::kBoolean) return input.flip() ? 1 : 0;
  if (p.kind == Parameter::Kind::kChoice) {
    return static_cast<int64_t>(input.below(split(p.choices).size()));
  }
  if (p.kind != Parameter::Kind::kInteger) {
    throw ConfigError(str_of("parameter ", p.name, " has a kind that fuzzing cannot draw"));
  }
  if (p.low == p.high) return p.low;
  if (p.power_of_two) {
    int64_t number = p.low;
    for (size_t i = input.below(64); i > 0 && 2 * number <= p.high; --i) number *= 2;
    return number;
  }
  const auto span = static_cast<uint64_t>(p.high) - static_cast<uint64_t>(p.low);
  if (span < 256) return p.low + static_cast<int64_t>(input.below(span + 1));
  constexpr uint64_t kNumbers[] = {0, 1, 2, 6, 32, 63, 99, 511, 999};
  const size_t which = input.below(16);
  uint64_t above = span;  // the last one
  if (which < std::size(kNumbers)) {
    above = kNumbers[which];
  } else if (which < 14) {
    above = input.below(5000);
  } else if (which < 15) {
    above = input.take<uint64_t>() % span;
  }
  return p.low + static_cast<int64_t>(std::min(above, span));
}

/// The family of the number that the input says, or of any number: so inputs keep their meaning
/// when a family is added.
inline const Family& take_family(Input& input) {
  const uint8_t number = input.take<uint8_t>();
  const Family* family = family_of(number);
  return family != nullptr ? *family : *families()[number % families().size()];
}

/// A parameter that does not go together with those before it stays at its default.
inline void set_if_allowed(CodecConfig& config, const Parameter& p, int64_t number) {
  CodecConfig changed = config;
  changed.set(p.name, number);
  try {
    make_codec(changed);
  } catch (const ConfigError&) {
    return;
  }
  config = changed;
}

inline std::shared_ptr<const Codec> take_codec(Input& input) {
  CodecConfig config(take_family(input));
  for (const Parameter& p : config.family().parameters) {
    if (!p.later) set_if_allowed(config, p, take_number(input, p));
  }
  // Later parameters take nothing of the input, so that inputs keep their meaning.
  if (config.family().has("exact_zeros") && config.get("bits") > 1 && config.hash() % 4 == 0) {
    config.set("exact_zeros", 1);
  }
  return make_codec(config);
}

inline std::vector<Layer> take_layers(Input& input, size_t most, size_t longest) {
  std::vector<Layer> layers(input.below(most + 1));
  for (Layer& layer : layers) {
    layer.codec = take_codec(input);
    layer.count = input.below(longest + 1);
  }
  return layers;
}

}  // namespace cgx::native
