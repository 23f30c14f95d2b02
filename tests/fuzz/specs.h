// Codecs, dtypes and layers as an input describes them.
#pragma once

#include <memory>
#include <vector>

#include "codec/families/maxmin/maxmin.h"
#include "reduce/plan/plan.h"
#include "targets.h"

namespace cgx::native {

inline DType take_dtype(Input& input) { return static_cast<DType>(input.below(3)); }

inline std::shared_ptr<const Codec> take_codec(Input& input) {
  const uint8_t kind = input.take<uint8_t>();
  if (kind % 8 == 7) return raw_codec();
  if ((kind & 0xc0) == 0xc0) return make_codec(kind & 8 ? "bf16" : "fp16");
  MaxMinOptions options;
  options.bits = 1 + kind % 8;
  constexpr int64_t kBuckets[] = {1, 2, 3, 7, 33, 64, 100, 512, 1000};
  const size_t choice = input.below(16);
  options.bucket_size = choice < 9 ? kBuckets[choice] : 1 + static_cast<int64_t>(input.below(5000));
  options.rounding = kind & 16 ? Rounding::kStochastic : Rounding::kNearest;
  options.skip_incomplete_buckets = (kind & 32) != 0;
  return make_maxmin(options);
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
