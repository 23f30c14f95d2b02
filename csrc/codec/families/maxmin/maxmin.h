// `maxmin` as code asks for it. All else about it is in its declaration (maxmin.cc).
#pragma once

#include <cstdint>
#include <memory>

#include "codec/codec.h"

namespace cgx {

enum class Rounding : uint8_t { kNearest = 0, kStochastic = 1 };

struct MaxMinOptions {
  int bits = 4;
  int64_t bucket_size = 512;
  Rounding rounding = Rounding::kNearest;
  /// The last n mod bucket_size values of a layer are sent raw, in the tensor's own type.
  bool skip_incomplete_buckets = false;
  int64_t seed = 0;  // of stochastic rounding
};

/// ConfigError that names the parameter, its value and what is allowed.
CodecConfig maxmin_config(const MaxMinOptions& options);
std::shared_ptr<const Codec> make_maxmin(const MaxMinOptions& options = {});

}  // namespace cgx
