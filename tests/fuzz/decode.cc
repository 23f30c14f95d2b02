#include <cmath>
#include <memory>

#include "base/half.h"
#include "check.h"
#include "codec/ops/level.h"
#include "specs.h"

namespace cgx::native {
namespace {

std::vector<std::string> levels() {
  std::vector<std::string> found;
  std::string text = cpu_levels() + ",";
  for (size_t at = 0, comma; (comma = text.find(',', at)) != std::string::npos; at = comma + 1) {
    found.push_back(text.substr(at, comma - at));
  }
  return found;
}

// Which NaN comes out of a bucket of NaNs is not part of the format.
void check_same(float a, float b, const Codec& codec, size_t i) {
  CHECK(float_bits(a) == float_bits(b) || (std::isnan(a) && std::isnan(b)), codec.describe(),
        ": value ", i, " is ", a, " at level scalar, ", b, " at ", cpu_level());
}

}  // namespace

void fuzz_decode(const uint8_t* data, size_t size) {
  static const std::vector<std::string> all = levels();
  Input input(data, size);
  const DType dtype = take_dtype(input);
  const auto codec = take_codec(input);
  const size_t count = input.below(3000);
  const size_t bytes = codec->encoded_bytes(count, dtype);
  // Memory of exactly the size that each side may touch.
  auto payload = std::make_unique<std::byte[]>(bytes);
  input.fill(payload.get(), bytes);
  std::vector<float> expected, sums;
  for (const std::string& level : all) {
    set_cpu_level(level);
    auto values = std::make_unique<float[]>(count);
    codec->decode(payload.get(), dtype, count, 0, count, values.get(), false);
    auto added = std::make_unique<float[]>(count);
    std::fill(added.get(), added.get() + count, 1.0f);
    codec->decode(payload.get(), dtype, count, 0, count, added.get(), true);
    auto parts = std::make_unique<float[]>(count);
    const size_t step = codec->block() * (1 + size % 3);
    for (size_t first = 0; first < count; first += step) {
      codec->decode(payload.get(), dtype, count, first, std::min(step, count - first),
                    parts.get() + first, false);
    }
    if (expected.empty()) {
      expected.assign(values.get(), values.get() + count);
      sums.assign(added.get(), added.get() + count);
    }
    for (size_t i = 0; i < count; ++i) {
      check_same(expected[i], values[i], *codec, i);
      check_same(expected[i], parts[i], *codec, i);
      check_same(sums[i], added[i], *codec, i);
    }
  }
  // The same bytes as values: all levels encode them to the same payload.
  const size_t n = std::min(count, bytes / size_of(dtype));
  const size_t encoded = codec->encoded_bytes(n, dtype);
  std::vector<std::byte> first;
  for (const std::string& level : all) {
    set_cpu_level(level);
    auto x = std::make_unique<std::byte[]>(n * size_of(dtype));
    std::copy(payload.get(), payload.get() + n * size_of(dtype), x.get());
    auto out = std::make_unique<std::byte[]>(encoded);
    codec->encode(x.get(), dtype, dtype, n, 0, n, {1, 2}, size, out.get());
    const std::vector<std::byte> mine(out.get(), out.get() + encoded);
    if (first.empty()) first = mine;
    CHECK(mine == first, codec->describe(), " encodes otherwise at level ", level);
  }
  set_cpu_level("");
}

}  // namespace cgx::native
