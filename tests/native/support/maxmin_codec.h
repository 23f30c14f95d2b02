// `maxmin` with some of its parameters; the others have their defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "codec/codec.h"
#include "codec/families/maxmin/maxmin.h"

namespace cgx {

struct MaxMinOptions {
  std::optional<int64_t> bits{}, bucket_size{};
  std::optional<Rounding> rounding{};
  std::optional<bool> skip_incomplete_buckets{};
  std::optional<int64_t> seed{};
  std::optional<bool> exact_zeros{};
};

inline std::shared_ptr<const Codec> make_maxmin(const MaxMinOptions& options = {}) {
  CodecConfig config = config_named("maxmin");
  const auto set = [&config](const char* name, const auto& value) {
    if (value) config.set(name, static_cast<int64_t>(*value));
  };
  set("bits", options.bits);
  set("bucket_size", options.bucket_size);
  set("rounding", options.rounding);
  set("skip_incomplete_buckets", options.skip_incomplete_buckets);
  set("exact_zeros", options.exact_zeros);
  set("seed", options.seed);
  return make_codec(config);
}

}  // namespace cgx
