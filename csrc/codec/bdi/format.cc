#include "codec/bdi/format.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "base/error.h"

namespace cgx::bdi {
namespace {

void check_range(const std::string& name, uint64_t value, uint64_t low, uint64_t high) {
  if (value < low || value > high) {
    throw ConfigError(str_of(name, " is ", value, ", allowed: ", low, " to ", high));
  }
}

void check_config(const Format& format, size_t number) {
  const Config& config = format.configs[number];
  const std::string where = str_of("configs[", number, "].");
  check_range(where + "num_bases", config.bases, 0, kMostBases);
  check_range(where + "base_size", config.base_bits, 1, 32);
  // A word takes a bit at least: so a payload's length limits the words that it can hold.
  check_range(where + "delta_size", config.delta_bits, format.zero_mask ? 0 : 1, 32);
}

// 0 finite or an integer, 1 infinite, 2 NaN; and the sign.
uint32_t kind_of(Words words, uint32_t word) {
  if (words == Words::kUint32) return 0;
  const uint32_t sign = word >> 31;
  if (words == Words::kInt32) return sign;
  const uint32_t size = word & 0x7fffffffu;
  return 2 * ((size >= 0x7f800000u ? 1 : 0) + (size > 0x7f800000u ? 1 : 0)) + sign;
}

}  // namespace

bool same_kind(Words words, uint32_t a, uint32_t b) {
  return kind_of(words, a) == kind_of(words, b);
}

uint32_t width_of(uint32_t most) { return static_cast<uint32_t>(std::bit_width(most)); }

void check(const Format& format) {
  check_range("dtype", static_cast<uint64_t>(format.words), 0, 2);
  check_range("batch_size", format.batch, 1, kMostBatch);
  check_range("scale_factor_init", format.scale_init, 0, 31);
  check_range("scale_factor_base", format.scale_base, 0, 31 - format.scale_init);
  check_range("scale_factor_delta", format.scale_delta, 0, 31 - format.scale_init);
  check_range("number of immediates", format.immediates.size(), 0, kMostImmediates);
  for (auto at = format.immediates.begin(); at != format.immediates.end(); ++at) {
    check_range("immediate", *at, 0, format.top());
    if (std::find(format.immediates.begin(), at, *at) != at) {
      throw ConfigError(str_of("immediate ", *at, " is there twice, allowed: once"));
    }
  }
  check_range("number of configs", format.configs.size(), 1, kMostConfigs);
  for (size_t i = 0; i < format.configs.size(); ++i) check_config(format, i);
}

uint64_t count_of(const std::vector<uint64_t>& shape) {
  check_range("number of dimensions", shape.size(), 0, kMostDims);
  // torch multiplies the sizes that are not 0 to strides, also of a tensor without elements.
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t product = 1;
  bool empty = false;
  for (uint64_t size : shape) {
    empty = empty || size == 0;
    if (size > kMost / product) {
      throw ConfigError(str_of("shape multiplies to more than ", kMost, ", which is allowed"));
    }
    product *= std::max(size, uint64_t{1});
  }
  return empty ? 0 : product;
}

}  // namespace cgx::bdi
