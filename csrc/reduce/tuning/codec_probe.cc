#include "reduce/tuning/codec_probe.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cgx {
namespace {

constexpr size_t kValues = size_t{1} << 16;
constexpr int kRuns = 4;

template <typename Body>
double least_seconds(Body&& body) {
  double least = 0;
  for (int i = 0; i < kRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (i == 0 || spent.count() < least) least = spent.count();
  }
  return least;
}

}  // namespace

CodecCost time_codec(const Codec& codec) {
  std::vector<float> values(kValues);
  uint32_t state = 1;
  for (float& value : values) {  // a linear congruential generator; codecs do not care
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F;
  }
  std::vector<std::byte> payload(codec.encoded_bytes(kValues, DType::kFloat32));
  std::vector<float> sum(kValues);
  CodecCost cost;
  cost.encode = least_seconds([&] {
    codec.encode(values.data(), DType::kFloat32, DType::kFloat32, kValues, 0, kValues, RandomKey{},
                 0, payload.data());
  });
  cost.decode = least_seconds([&] {
    codec.decode(payload.data(), DType::kFloat32, kValues, 0, kValues, sum.data(), /*add=*/true);
  });
  cost.encode /= static_cast<double>(kValues);
  cost.decode /= static_cast<double>(kValues);
  return cost;
}

}  // namespace cgx
