#include "codec/levels/level_table.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/float_mode.h"
#include "codec/levels/tree.h"
#include "codec/ops/scalar-inl.h"

namespace cgx::levels {
namespace scalar {
namespace {

using namespace cgx::cpu::scalar;

/// The oracle compares all types in float64.
template <int type>
struct Value {
  static constexpr DType kType = static_cast<DType>(type);
  static double of(const std::byte* x, size_t i) { return static_cast<double>(load<kType>(x, i)); }
  static void put(std::byte* y, size_t i, const Arrays& table, uint32_t code) {
    store<kType>(y, i, table.level[code]);
  }
  static void put_product(std::byte* y, size_t i, const std::byte* x, const Arrays& table,
                          uint32_t code) {
    store<kType>(y, i, rn_mul(load<kType>(x, i), table.level[code]));
  }
};
template <>
struct Value<kFloat64> {
  static double of(const std::byte* x, size_t i) { return load_wide(x, i); }
  static void put(std::byte* y, size_t i, const Arrays& table, uint32_t code) {
    store_wide(y, i, table.wide_level[code]);
  }
  static void put_product(std::byte* y, size_t i, const std::byte* x, const Arrays& table,
                          uint32_t code) {
    store_wide(y, i, load_wide(x, i) * table.wide_level[code]);
  }
};

template <int type>
bool encode(const Arrays& table, const std::byte* x, size_t n, std::byte* codes) {
  constexpr size_t kTogether = 8;  // steps of a search wait for each other
  BitWriter writer(codes, table.bits);
  const uint32_t mask = (1u << table.bits) - 1;
  bool nan = false;
  for (size_t i = 0; i < n; i += kTogether) {
    const size_t some = kTogether < n - i ? kTogether : n - i;
    double value[kTogether] = {};
    uint32_t below[kTogether] = {};
    for (size_t k = 0; k < some; ++k) {
      value[k] = Value<type>::of(x, i + k);
      if (table.magnitude) value[k] = std::abs(value[k]);
      nan |= std::isnan(value[k]);
    }
    for (uint32_t step = 1u << (table.depth - 1); step > 0; step /= 2) {
      // A NaN passes all borders, the infinite ones, too.
      for (size_t k = 0; k < kTogether; ++k) {
        below[k] += value[k] <= table.border[below[k] + step - 1] ? 0 : step;
      }
    }
    for (size_t k = 0; k < some; ++k) {
      writer.put((below[k] < table.borders ? below[k] : table.borders) & mask);
    }
  }
  return nan;
}

template <int type>
void decode(const Arrays& table, const std::byte* codes, const std::byte*, size_t n, std::byte* y) {
  BitReader reader(codes, table.bits);
  for (size_t i = 0; i < n; ++i) Value<type>::put(y, i, table, reader.get());
}

template <int type>
void multiply(const Arrays& table, const std::byte* codes, const std::byte* x, size_t n,
              std::byte* y) {
  BitReader reader(codes, table.bits);
  for (size_t i = 0; i < n; ++i) Value<type>::put_product(y, i, x, table, reader.get());
}

constexpr Loops kLoops{{encode<0>, encode<1>, encode<2>, encode<kFloat64>},
                       {decode<0>, decode<1>, decode<2>, decode<kFloat64>},
                       {multiply<0>, multiply<1>, multiply<2>, multiply<kFloat64>}};

}  // namespace
}  // namespace scalar
}  // namespace cgx::levels

#define CGX_LEVEL_FILE "codec/levels/loops-inl.h"
#include "codec/ops/foreach_level-inl.h"

namespace cgx {
namespace levels {
namespace {

constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);

const Loops& loops_in_force() { return cpu::at_level(kByLevel); }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The greatest float32 that is not above x. A float32 is above it where it is above x.
float rounded_down(double x) {
  constexpr auto kMost = std::numeric_limits<float>::max();
  if (x >= kMost) return x == kInfinity ? std::numeric_limits<float>::infinity() : kMost;
  if (x < -kMost) return -std::numeric_limits<float>::infinity();
  const auto nearest = static_cast<float>(x);
  return nearest > x ? std::nextafter(nearest, -std::numeric_limits<float>::infinity()) : nearest;
}

size_t number_of(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  if (number >= kTypes) {
    throw ConfigError(str_of("a table of levels takes float32, float16, bfloat16 and float64, not ",
                             name_of(dtype)));
  }
  return number;
}

const std::byte* bytes(const void* x) { return static_cast<const std::byte*>(x); }
std::byte* bytes(void* x) { return static_cast<std::byte*>(x); }

}  // namespace
}  // namespace levels

using levels::bytes;
using levels::kFloat64;
using levels::loops_in_force;
using levels::number_of;

LevelTable::LevelTable(const std::vector<double>& borders, const std::vector<double>& values,
                       bool magnitude) {
  const size_t count = values.size();
  if (count < 2 || count > levels::kMostLevels) {
    throw ConfigError(str_of("a table has ", count, " levels, allowed: 2 to 256"));
  }
  const bool take_turns =
      std::has_single_bit(count) && borders.size() >= count && borders.size() < levels::kMostLevels;
  if (borders.size() != count - 1 && !take_turns) {
    throw ConfigError(str_of("a table of ", count, " levels has ", borders.size(),
                             " borders, needs ", count - 1));
  }
  for (size_t i = 0; i < borders.size(); ++i) {
    if (!std::isfinite(borders[i]) || (i > 0 && borders[i] <= borders[i - 1])) {
      throw ConfigError(str_of("border number ", i, " of a table is ", borders[i],
                               ", which is not finite or not above the border before"));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (!(std::abs(values[i]) <= std::numeric_limits<float>::max())) {
      throw ConfigError(str_of("level number ", i, " of a table is ", values[i],
                               ", which is not finite in float32"));
    }
  }
  FloatMode mode;
  table_.bits = std::bit_width(count - 1);
  table_.depth = std::bit_width(borders.size());
  table_.borders = static_cast<uint32_t>(borders.size());
  table_.magnitude = magnitude;
  for (size_t i = 0; i < levels::kMostLevels; ++i) {
    table_.border[i] = i < borders.size() ? borders[i] : levels::kInfinity;
    table_.wide_level[i] = values[i < count ? i : count - 1];
    table_.level[i] = static_cast<float>(table_.wide_level[i]);
    table_.tree[i] = 0.0f;
  }
  const int leaves = 1 << table_.depth;
  levels::fill_tree(table_.tree, leaves,
                    [&](int i) { return levels::rounded_down(table_.border[i]); });
}

levels::on_gpu::Table LevelTable::on_gpu() const {
  constexpr uint32_t kMost = levels::on_gpu::kMostLevelsOfKernels;
  if (table_.borders + 1 > kMost) {
    throw ConfigError(
        str_of("a table has ", table_.borders, " borders, allowed on a GPU: 1 to ", kMost - 1));
  }
  levels::on_gpu::Table table{};
  for (uint32_t i = 0; i < kMost; ++i) {
    table.border[i] = levels::rounded_down(table_.border[i]);
    table.level[i] = table_.level[i];
    table.wide_border[i] = table_.border[i];
    table.wide_level[i] = table_.wide_level[i];
  }
  table.bits = static_cast<uint32_t>(table_.bits);
  table.depth = static_cast<uint32_t>(table_.depth);
  table.borders = table_.borders;
  table.magnitude = table_.magnitude ? 1 : 0;
  return table;
}

size_t LevelTable::code_bytes(size_t n) const {
  const auto width = static_cast<size_t>(table_.bits);
  return n / 8 * width + (n % 8 * width + 7) / 8;
}

bool LevelTable::encode(const void* x, DType dtype, size_t n, std::byte* codes) const {
  FloatMode mode;
  return loops_in_force().encode[number_of(dtype)](table_, bytes(x), n, codes);
}

bool LevelTable::encode(const double* x, size_t n, std::byte* codes) const {
  FloatMode mode;
  return loops_in_force().encode[kFloat64](table_, bytes(x), n, codes);
}

void LevelTable::decode(const std::byte* codes, size_t n, void* y, DType dtype) const {
  FloatMode mode;
  loops_in_force().decode[number_of(dtype)](table_, codes, nullptr, n, bytes(y));
}

void LevelTable::decode(const std::byte* codes, size_t n, double* y) const {
  FloatMode mode;
  loops_in_force().decode[kFloat64](table_, codes, nullptr, n, bytes(y));
}

void LevelTable::multiply(const std::byte* codes, const void* x, size_t n, void* y,
                          DType dtype) const {
  FloatMode mode;
  loops_in_force().multiply[number_of(dtype)](table_, codes, bytes(x), n, bytes(y));
}

void LevelTable::multiply(const std::byte* codes, const double* x, size_t n, double* y) const {
  FloatMode mode;
  loops_in_force().multiply[kFloat64](table_, codes, bytes(x), n, bytes(y));
}

}  // namespace cgx
