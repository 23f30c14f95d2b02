// LevelTable at the level in force: codes and values as a model of a few lines has them, the scalar
// level's bytes, nothing written outside.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../device/host_kernels.h"
#include "at_level.h"
#include "base/error.h"
#include "check.h"
#include "codec/families/rotated/formulas.h"
#include "codec/levels/gpu/stages.h"
#include "codec/levels/level_table.h"
#include "data.h"

namespace cgx::native {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kCounts[] = {2, 3, 4, 5, 16, 17, 255, 256};
/// The number of a dtype; 3 is float64.
constexpr int kTypes = 4;

size_t bytes_of(int type) { return type == 3 ? 8 : size_of(static_cast<DType>(type)); }

/// Bytes at an odd address, with others around them that have to stay.
class Guarded {
 public:
  Guarded(size_t n, size_t shift) : memory_(n + 2 * kAround + shift, kFill), n_(n), shift_(shift) {}
  std::byte* data() { return memory_.data() + kAround + shift_; }
  std::vector<std::byte> taken() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      const bool inside = i >= kAround + shift_ && i < kAround + shift_ + n_;
      CHECK(inside || memory_[i] == kFill, "byte ", i, " of ", n_, " was written");
    }
    return {data(), data() + n_};
  }

 private:
  static constexpr size_t kAround = 128;
  static constexpr std::byte kFill{0xa5};
  std::vector<std::byte> memory_;
  size_t n_, shift_;
};

struct Levels {
  std::vector<double> borders, levels;
  bool magnitude = false;
  LevelTable table() const { return {borders, levels, magnitude}; }
};

/// Borders that float32 lacks among them; levels that do not rise.
Levels levels_of(size_t count, double reach) {
  Random random(count);
  Levels some;
  for (size_t i = 0; i < count; ++i) some.levels.push_back(random.signed_unit() * 4);
  while (some.borders.size() + 1 < count) {
    const double at = std::pow(random.signed_unit(), 3) * reach;
    const bool rounded = random(2) == 0 && std::fabs(at) < 3.4e38;
    const double border = rounded ? static_cast<double>(static_cast<float>(at)) : at;
    if (std::find(some.borders.begin(), some.borders.end(), border) == some.borders.end()) {
      some.borders.push_back(border);
    }
  }
  std::sort(some.borders.begin(), some.borders.end());
  some.magnitude = random(2) == 0;
  return some;
}

/// As bytes of a type, rounded to it.
std::vector<std::byte> as_type(const std::vector<double>& x, int type) {
  if (type == 3) {
    const auto* bytes = reinterpret_cast<const std::byte*>(x.data());
    return {bytes, bytes + 8 * x.size()};
  }
  std::vector<float> narrow(x.begin(), x.end());
  return tensor_of(narrow, static_cast<DType>(type));
}
double value_at(const std::vector<std::byte>& x, int type, size_t i) {
  double value;
  if (type == 3) {
    std::memcpy(&value, x.data() + 8 * i, 8);
    return value;
  }
  return load_value(x.data() + i * bytes_of(type), static_cast<DType>(type));
}

struct Result {
  std::vector<std::byte> codes, decoded, multiplied, in_place;
  bool nan;
  bool operator==(const Result&) const = default;
};

Result run(const LevelTable& table, const std::vector<std::byte>& x, int type, size_t shift) {
  const size_t n = x.size() / bytes_of(type);
  Guarded in(x.size(), shift), codes(table.code_bytes(n), shift), out(x.size(), shift),
      product(x.size(), shift);
  std::copy(x.begin(), x.end(), in.data());
  const auto dtype = static_cast<DType>(type);
  bool nan;
  const auto wide = [](Guarded& memory) { return reinterpret_cast<double*>(memory.data()); };
  if (type == 3) {
    nan = table.encode(wide(in), n, codes.data());
    table.decode(codes.data(), n, wide(out));
    table.multiply(codes.data(), wide(in), n, wide(product));
    table.multiply(codes.data(), wide(in), n, wide(in));
  } else {
    nan = table.encode(in.data(), dtype, n, codes.data());
    table.decode(codes.data(), n, out.data(), dtype);
    table.multiply(codes.data(), in.data(), n, product.data(), dtype);
    table.multiply(codes.data(), in.data(), n, in.data(), dtype);
  }
  return {codes.taken(), out.taken(), product.taken(), in.taken(), nan};
}

/// The codes and products of the kernels, from memory at any multiple of a value's size.
void check_kernels(const LevelTable& table, const std::vector<std::byte>& x, int type,
                   const Result& wanted) {
  using namespace levels::on_gpu;
  const size_t n = x.size() / bytes_of(type);
  std::vector<std::byte> codes(table.code_bytes(n), std::byte{0x5a}), y(x.size(), std::byte{0x5a});
  EncodeCall encode{};
  encode.x = reinterpret_cast<const unsigned char*>(x.data());
  encode.codes = reinterpret_cast<unsigned char*>(codes.data());
  encode.values = n;
  encode.count = (n + gpu::kPartValues - 1) / gpu::kPartValues;
  encode.table = table.on_gpu();
  encode.type = static_cast<uint8_t>(type);
  device::launch_blocks<EncodeCall, gpu::NoMemory>(encode, encode_stage);
  CHECK(codes == wanted.codes, n, " values of type ", type);
  MultiplyCall multiply{};
  multiply.x = encode.x;
  multiply.codes = encode.codes;
  multiply.y = reinterpret_cast<unsigned char*>(y.data());
  multiply.values = n;
  multiply.count = encode.count;
  multiply.table = encode.table;
  multiply.type = encode.type;
  device::launch_blocks<MultiplyCall, gpu::NoMemory>(multiply, multiply_stage);
  CHECK(y == wanted.multiplied, n, " values of type ", type);
}

uint32_t code_at(const std::vector<std::byte>& codes, int bits, size_t i) {
  uint32_t code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const size_t at = i * static_cast<size_t>(bits) + static_cast<size_t>(bit);
    code |= (static_cast<uint32_t>(codes[at / 8]) >> (at % 8) & 1) << bit;
  }
  return code;
}

void check(const Levels& some, const std::vector<std::byte>& x, int type, size_t shift) {
  const LevelTable table = some.table();
  const Result found = run(table, x, type, shift);
  {
    AtLevel scalar("scalar");
    CHECK(run(table, x, type, 0) == found, some.levels.size(), " levels, type ", type, " at level ",
          cpu_level());
  }
  CHECK(found.multiplied == found.in_place);
  if (some.borders.size() < 16) check_kernels(table, x, type, found);
  const size_t n = x.size() / bytes_of(type);
  bool nan = false;
  for (size_t i = 0; i < n; ++i) {
    const double value = value_at(x, type, i);
    nan |= std::isnan(value);
    const double compared = some.magnitude ? std::fabs(value) : value;
    size_t code = 0;
    for (const double border : some.borders) code += compared <= border ? 0 : 1;
    code %= some.levels.size();
    CHECK(code_at(found.codes, table.bits(), i) == code, value, " number ", i, " has code ",
          code_at(found.codes, table.bits(), i), ", not ", code, " of ", some.levels.size());
    double level = some.levels[code];
    if (type != 3) level = static_cast<float>(level);
    const auto same = [&](const std::vector<std::byte>& y, double wanted) {
      const auto as = as_type({type == 3 ? wanted : static_cast<float>(wanted)}, type);
      return std::equal(as.begin(), as.end(), y.begin() + static_cast<ptrdiff_t>(i * as.size()));
    };
    CHECK(same(found.decoded, level), value);
    const double product = value * level;  // of floats it is exact
    CHECK(same(found.multiplied, product == product ? product : kNaN), value);
  }
  CHECK(found.nan == nan, "a NaN among ", n, " values of type ", type);
}

}  // namespace

TEST(codec_levels_of_every_16_bit_value) {
  std::vector<std::byte> all(2 * 65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    std::memcpy(all.data() + 2 * i, &bits, 2);
  }
  for (const size_t count : kCounts) {
    check(levels_of(count, 3), all, 1, 1);
    check(levels_of(count, 1e4), all, 2, 1);
  }
}

TEST(codec_levels_that_take_turns) {
  for (const size_t count : {3, 4, 5, 16, 17, 255, 256}) {
    Levels some = levels_of(count, 2);
    for (size_t turns = 2; turns < count && turns <= 16; turns *= 2) {
      some.levels.resize(turns);
      for (int type = 0; type < kTypes; ++type) {
        const auto x = values(1100, 0, count);
        check(some, as_type({x.begin(), x.end()}, type), type, 3);
      }
      some = levels_of(count, 2);
    }
  }
}

TEST(codec_levels_of_every_small_size) {
  for (size_t n = 0; n <= 400; ++n) {
    for (int type = 0; type < kTypes; ++type) {
      const size_t count = kCounts[(n + static_cast<size_t>(type)) % std::size(kCounts)];
      const auto x = values(n, static_cast<int>(n % kPatterns), n);
      check(levels_of(count, 2), as_type({x.begin(), x.end()}, type), type, n % 8);
    }
  }
  for (const size_t n : {1023, 1024, 1025, 5000}) {
    for (int type = 0; type < kTypes; ++type) {
      for (const size_t count : kCounts) {
        const auto x = values(n, 0, n);
        check(levels_of(count, 2), as_type({x.begin(), x.end()}, type), type, 3);
      }
    }
  }
}

TEST(codec_levels_at_borders_and_beyond) {
  for (const size_t count : kCounts) {
    for (const double reach : {3.0, 1e-41, 1e38, 1e300}) {
      const Levels some = levels_of(count, reach);
      std::vector<double> x = {kNaN, -kNaN, kInf, -kInf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38};
      for (const double border : some.borders) {
        const auto near = static_cast<float>(std::clamp(border, -3.4e38, 3.4e38));
        for (const double at : {border, static_cast<double>(near)}) {
          x.insert(x.end(), {at, std::nextafter(at, kInf), std::nextafter(at, -kInf)});
        }
        x.push_back(std::nextafter(near, std::numeric_limits<float>::infinity()));
        x.push_back(std::nextafter(near, -std::numeric_limits<float>::infinity()));
      }
      check(some, as_type(x, 3), 3, 1);
      for (double& value : x) {
        if (std::isfinite(value)) value = std::clamp(value, -3.4e38, 3.4e38);
      }
      for (int type = 0; type < 3; ++type) check(some, as_type(x, type), type, 1);
    }
  }
}

// A format of four bits: ties go to the even code, by borders that are a step lower.
TEST(codec_levels_round_to_e2m1) {
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  Levels some;
  for (int i = 7; i > 0; --i) some.levels.push_back(-magnitudes[i]);
  for (const double magnitude : magnitudes) some.levels.push_back(magnitude);
  for (int i = 0; i < 14; ++i) {
    const size_t at = static_cast<size_t>(i);
    const double middle = (some.levels[at] + some.levels[at + 1]) / 2;
    const bool upper_is_even = (i + 1 - 7) % 2 == 0;
    some.borders.push_back(upper_is_even ? std::nextafter(middle, -kInf) : middle);
  }
  const LevelTable table = some.table();
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float x = half_to_float(bits);
    if (std::isnan(x)) continue;
    std::byte code;
    table.encode(&bits, DType::kFloat16, 1, &code);
    float y;
    table.decode(&code, 1, &y, DType::kFloat32);
    // Of the multiples of the unit of its binade, the nearest one, to even.
    const float magnitude = std::min(std::fabs(x), 6.0f);
    const float unit = magnitude < 2 ? 0.5f : magnitude < 4 ? 1.0f : 2.0f;
    const float wanted = std::min(std::nearbyint(magnitude / unit) * unit, 6.0f);
    CHECK(std::fabs(y) == wanted && (wanted == 0 || std::signbit(y) == std::signbit(x)), x, " ", y);
  }
}

// `rotated` searches magnitudes: its codes are others, its levels the same where no border is met.
TEST(codec_levels_agree_with_rotated) {
  for (int bits = 1; bits <= 8; ++bits) {
    const float* magnitudes = rotated::kLevels + rotated::first_level(bits);
    const int half = 1 << (bits - 1);
    Levels some;
    for (int i = half; i-- > 0;) some.levels.push_back(-magnitudes[i]);
    for (int i = 0; i < half; ++i) some.levels.push_back(magnitudes[i]);
    for (int i = half - 1; i-- > 0;) {
      some.borders.push_back(-rotated::threshold(magnitudes, static_cast<uint32_t>(i)));
    }
    some.borders.push_back(0);
    for (int i = 0; i + 1 < half; ++i) {
      some.borders.push_back(rotated::threshold(magnitudes, static_cast<uint32_t>(i)));
    }
    std::vector<float> u = values(4000, 0, 5), y(4000);
    const LevelTable table = some.table();
    std::vector<std::byte> codes(table.code_bytes(u.size()));
    table.encode(u.data(), DType::kFloat32, u.size(), codes.data());
    table.decode(codes.data(), u.size(), y.data(), DType::kFloat32);
    for (size_t i = 0; i < u.size(); ++i) {
      const uint32_t code = rotated::code_of(u[i], magnitudes, bits);
      CHECK(y[i] == rotated::level_of(code, magnitudes, bits), u[i]);
    }
  }
}

// Bits allow codes that a table of five levels lacks.
TEST(codec_levels_behind_the_last_one) {
  const LevelTable table({1, 2, 3, 4}, {10, 11, 12, 13, 14});
  const std::vector<std::byte> codes = {std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};
  std::vector<float> y(8);
  table.decode(codes.data(), 8, y.data(), DType::kFloat32);
  for (const float value : y) CHECK(value == 14, value);
}

TEST(codec_levels_that_are_wrong_are_named) {
  const auto error = [](const std::vector<double>& borders, const std::vector<double>& levels) {
    return error_of<ConfigError>([&] { LevelTable(borders, levels); });
  };
  CHECK(contains(error({}, {1}), "a table has 1 levels, allowed: 2 to 256"));
  CHECK(contains(error(std::vector<double>(256), std::vector<double>(257)), "has 257 levels"));
  CHECK(contains(error({1, 2, 3}, {1, 2, 3}), "a table of 3 levels has 3 borders, needs 2"));
  CHECK(contains(error({1, 1}, {1, 2, 3}), "border number 1 of a table is 1"));
  CHECK(contains(error({kNaN}, {1, 2}), "border number 0 of a table is nan"));
  CHECK(contains(error({1, kInf}, {1, 2, 3}), "border number 1 of a table is inf"));
  CHECK(contains(error({1}, {1, 1e39}), "level number 1 of a table is 1e+39"));
  CHECK(contains(error({1}, {kNaN, 1}), "level number 0 of a table is nan"));
  const LevelTable table({0}, {-1, 1});
  float x = 0;
  std::byte code;
  CHECK(contains(error_of<ConfigError>([&] { table.encode(&x, static_cast<DType>(4), 1, &code); }),
                 "takes float32, float16, bfloat16 and float64, not "));
}

}  // namespace cgx::native
