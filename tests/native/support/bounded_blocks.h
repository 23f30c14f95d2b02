// Blocks of the error-bounded compressor without an entropy coder, and what a bound promises, by the
// definition alone. For the native tests and for the fuzzer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/half.h"
#include "check.h"
#include "codec/bounded/decode/decoder.h"
#include "codec/bounded/encode/encoder.h"
#include "codec/ops/level.h"

namespace cgx::native {

using Block = std::vector<std::byte>;
using bounded::BoundKind;

inline constexpr int kElements = bounded::kLastElement;
constexpr DType element_number(size_t i) {
  return bounded::element_of(static_cast<int>(1 + i % kElements));
}

inline const std::vector<std::string>& simd_levels() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> found;
    std::string text = cpu_levels() + ",";
    for (size_t at = 0, comma; (comma = text.find(',', at)) != std::string::npos; at = comma + 1) {
      found.push_back(text.substr(at, comma - at));
    }
    return found;
  }();
  return all;
}

/// The level in force for the time of a scope; after it the one before.
class AtSimdLevel {
 public:
  explicit AtSimdLevel(const std::string& name) : before_(cpu_level()) { set_cpu_level(name); }
  ~AtSimdLevel() { set_cpu_level(before_); }

 private:
  std::string before_;
};

/// Memory of exactly these bytes, `shift` bytes after an aligned address: AddressSanitizer sees every
/// access beyond its end.
class ExactBytes {
 public:
  ExactBytes(std::span<const std::byte> bytes, size_t shift)
      : memory_(new std::byte[bytes.size() + shift]), shift_(shift), size_(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), data());
  }
  std::byte* data() const { return memory_.get() + shift_; }
  std::span<const std::byte> span() const { return {data(), size_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t shift_, size_;
};

/// Puts the checksum that a reader expects at the end of a block.
inline void seal(Block& block) {
  const uint32_t crc = crc32c(block.data(), block.size() - bounded::kCrcBytes);
  std::memcpy(block.data() + block.size() - bounded::kCrcBytes, &crc, sizeof crc);
}

struct EncodedBlock {
  Block content;
  Block plain;     // the content is stored as it is, or the values, if they are shorter
  Block framed;    // one byte stands for the frame; without content the same as `plain`
  Block windowed;  // with windowed symbols; empty where they promise nothing

  bool operator==(const EncodedBlock&) const = default;
};

/// At the level in force. geometry: of values that may be a field.
inline EncodedBlock encode_block(const std::shared_ptr<const bounded::Maps>& maps,
                                 std::span<const std::byte> values,
                                 const bounded::field::Geometry& geometry = {}) {
  const size_t n = values.size() / size_of(maps->element());
  const ExactBytes x(values, 0);
  bounded::Encoder encoder(maps);
  encoder.place(geometry);
  const auto finish = [&](std::span<const std::byte> frame) {
    encoder.encode(x.data(), n);
    const auto block = encoder.finish(frame);
    return Block(block.begin(), block.end());
  };
  EncodedBlock made;
  made.plain = finish({});
  made.content.assign(encoder.content().begin(), encoder.content().end());
  const std::byte frame[1] = {std::byte{1}};
  made.framed = made.content.empty() ? made.plain : finish(frame);
  if (encoder.windowed() > 0) {
    encoder.encode(x.data(), n);
    encoder.use_windows();
    const auto block = encoder.finish({});
    made.windowed.assign(block.begin(), block.end());
  }
  return made;
}

/// The values of a block. `content` is what its frame holds, if it has one. Throws PayloadError.
inline Block decode_block(const std::shared_ptr<const bounded::Maps>& maps,
                          std::span<const std::byte> block, std::span<const std::byte> content,
                          size_t n) {
  bounded::Decoder decoder(maps);
  const ExactBytes in(block, block.size() % 5), held(content, content.size() % 3);
  const bounded::OpenBlock open = decoder.open(in.span(), n);
  auto y = std::make_unique<std::byte[]>(n * size_of(maps->element()));
  decoder.decode(open, held.span(), y.get());
  return {y.get(), y.get() + n * size_of(maps->element())};
}

inline uint64_t raw_bits(DType element, const std::byte* at) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, size_of(element));
  return bits;
}

inline double float_value(DType element, uint64_t bits) {
  switch (element) {
    case DType::kFloat64:
      return __builtin_bit_cast(double, bits);
    case DType::kFloat32:
      return bits_float(static_cast<uint32_t>(bits));
    case DType::kFloat16:
      return half_to_float(static_cast<uint16_t>(bits));
    default:
      return bfloat16_to_float(static_cast<uint16_t>(bits));
  }
}

inline bool is_subnormal(DType element, double x) {
  const double least = element == DType::kFloat64   ? 0x1p-1022
                       : element == DType::kFloat16 ? 0x1p-14
                                                    : 0x1p-126;
  return x != 0 && std::fabs(x) < least;
}

/// Nothing, or what is wrong with y, the value that came back for x.
inline std::optional<std::string> broken_promise(DType element, BoundKind kind, double bound,
                                                 uint64_t x, uint64_t y) {
  const auto wrong = [&](const char* what) {
    return str_of(what, ": bits ", std::hex, x, " came back as ", y);
  };
  if (!is_floating(element) || kind == BoundKind::kLossless) {
    return x == y ? std::nullopt : std::optional(wrong("altered"));
  }
  const double a = float_value(element, x), b = float_value(element, y);
  if (std::isnan(a)) return std::isnan(b) ? std::nullopt : std::optional(wrong("NaN"));
  if (std::isinf(a) || (a == 0 && std::signbit(a))) {
    return x == y ? std::nullopt : std::optional(wrong("special"));
  }
  // Larger, so that no product is rounded to a subnormal number.
  const double scale = std::fabs(a) < 0x1p-900 ? 0x1p100 : 1;
  const double allowed =
      kind == BoundKind::kPointwise ? bound * std::fabs(a * scale) : bound * scale;
  if (std::fabs(a * scale - b * scale) <= allowed) return std::nullopt;
  return str_of(a, " came back as ", b, ", off by ", std::fabs(a - b),
                ", allowed: ", allowed / scale);
}

/// Throws CheckFailed: a value did not come back as the bound promises.
inline void check_promise(DType element, BoundKind kind, double bound, std::span<const std::byte> x,
                          std::span<const std::byte> y, const std::string& what) {
  CHECK(x.size() == y.size(), what);
  const size_t bytes = size_of(element);
  for (size_t at = 0; at < x.size(); at += bytes) {
    const auto wrong = broken_promise(element, kind, bound, raw_bits(element, x.data() + at),
                                      raw_bits(element, y.data() + at));
    if (wrong) throw CheckFailed(str_of(what, ", value ", at / bytes, ": ", *wrong));
  }
}

/// Values become the same blocks at all levels, these become the same values at all levels, and the
/// bound holds. Returns the blocks.
inline EncodedBlock check_round_trip(const std::shared_ptr<const bounded::Maps>& maps,
                                     BoundKind kind, std::span<const std::byte> values,
                                     const std::string& what,
                                     const bounded::field::Geometry& geometry = {}) {
  const size_t n = values.size() / size_of(maps->element());
  std::optional<EncodedBlock> first;
  Block plain, framed;
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const EncodedBlock made = encode_block(maps, values, geometry);
    const Block y = decode_block(maps, made.plain, {}, n);
    const Block z = decode_block(maps, made.framed, made.content, n);
    if (!first) {
      first = made;
      plain = y;
      framed = z;
      check_promise(maps->element(), kind, maps->bound(), values, y, what);
      check_promise(maps->element(), kind, maps->bound(), values, z, what + ", framed");
    }
    CHECK(made == *first, what, ": another block at level ", level);
    CHECK(y == plain && z == framed, what, ": other values at level ", level);
    if (made.windowed.empty()) continue;
    const Block windowed = decode_block(maps, made.windowed, {}, n);
    check_promise(maps->element(), kind, maps->bound(), values, windowed, what + ", windowed");
  }
  return *first;
}

}  // namespace cgx::native
