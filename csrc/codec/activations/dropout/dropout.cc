#include "codec/activations/dropout/dropout.h"

#include <algorithm>

#include "base/error.h"
#include "base/float_mode.h"
#include "codec/activations/dropout/loops.h"
#include "codec/ops/scalar-inl.h"

namespace cgx::dropping {
namespace scalar {
namespace {

using namespace cgx::cpu::scalar;

bool stays(const Run& run, size_t i) {
  const auto counter = run.first + static_cast<uint32_t>(i);
  return random_unit(random_bits(counter, run.key.low, run.key.high)) < run.keep;
}

template <int type>
void drop(const Run& run, const std::byte* x, size_t n, std::byte* y) {
  constexpr auto kType = static_cast<DType>(type);
  for (size_t i = 0; i < n; ++i) {
    const float factor = stays(run, i) ? static_cast<float>(run.scale) : 0.0f;
    store<kType>(y, i, rn_mul(load<kType>(x, i), factor));
  }
}

template <>
void drop<kFloat64>(const Run& run, const std::byte* x, size_t n, std::byte* y) {
  for (size_t i = 0; i < n; ++i) {
    store_wide(y, i, load_wide(x, i) * (stays(run, i) ? run.scale : 0.0));
  }
}

constexpr Loops kLoops{{drop<0>, drop<1>, drop<2>, drop<kFloat64>}};

}  // namespace
}  // namespace scalar
}  // namespace cgx::dropping

#define CGX_LEVEL_FILE "codec/activations/dropout/loops-inl.h"
#include "codec/ops/foreach_level-inl.h"

namespace cgx {
namespace dropping {
namespace {

constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);

}  // namespace
}  // namespace dropping

void dropout(const void* x, DType dtype, size_t n, double p, RandomKey key, uint64_t index,
             void* y) {
  const auto type = static_cast<size_t>(dtype);
  if (type >= dropping::kTypes) {
    throw ConfigError(
        str_of("dropout takes float32, float16, bfloat16 and float64, not ", name_of(dtype)));
  }
  if (!(p >= 0 && p <= 1)) throw ConfigError(str_of("p is ", p, ", allowed: 0 to 1"));
  FloatMode mode;
  const auto& loops = cpu::at_level(dropping::kByLevel);
  const auto* from = static_cast<const std::byte*>(x);
  auto* to = static_cast<std::byte*>(y);
  for (size_t done = 0; done < n;) {
    const uint64_t number = index + done;
    const uint64_t left = (uint64_t{1} << 32) - (number & 0xffffffffu);  // with this high word
    const size_t some = static_cast<size_t>(std::min<uint64_t>(n - done, left));
    const dropping::Run run{key_of_high(key, static_cast<uint32_t>(number >> 32)),
                            static_cast<uint32_t>(number), static_cast<float>(1 - p),
                            p < 1 ? 1 / (1 - p) : 0.0};
    loops.drop[type](run, from + done * size_of(dtype), some, to + done * size_of(dtype));
    done += some;
  }
}

}  // namespace cgx
