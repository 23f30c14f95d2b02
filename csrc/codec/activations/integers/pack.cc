#include "codec/activations/integers/pack.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace cgx {
namespace {

constexpr size_t kTogether = 8;  // codes, whose bits fill whole bytes

void check(DType dtype, int bits) {
  const DTypeKind kind = kind_of(dtype);
  if (kind != DTypeKind::kInteger && kind != DTypeKind::kBool) {
    throw ConfigError(str_of("integers are packed, not ", name_of(dtype)));
  }
  if (bits < 1 || bits > 64) throw ConfigError(str_of("bits is ", bits, ", allowed: 1 to 64"));
}

/// A bool, whose byte need not be 0 or 1: a view of other bytes has any.
struct Flag {
  Flag() = default;
  explicit Flag(uint64_t code) : byte(code != 0) {}
  explicit operator int64_t() const { return byte != 0; }
  uint8_t byte = 0;
};

template <typename T>
T loaded(const std::byte* x) {
  T value;
  std::memcpy(&value, x, sizeof(T));
  return value;
}

/// The lowest bits of eight codes, `bits` of each, which is 1 to 7.
uint64_t join(const uint8_t (&codes)[kTogether], int bits) {
  uint64_t word = 0;
  for (size_t k = 0; k < kTogether; ++k)
    word |= uint64_t{codes[k]} << (k * static_cast<size_t>(bits));
  return word;
}

template <typename T>
void pack(const std::byte* x, size_t n, uint64_t low, int bits, std::byte* out) {
  const int planes = bits / 8, rest = bits % 8;
  const auto code_at = [=](size_t i) {
    return static_cast<uint64_t>(static_cast<int64_t>(loaded<T>(x + i * sizeof(T)))) - low;
  };
  for (int plane = 0; plane < planes; ++plane, out += n) {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(code_at(i) >> (8 * plane));
  }
  if (rest == 0) return;
  const auto mask = static_cast<uint8_t>((1 << rest) - 1);
  for (size_t i = 0; i < n; i += kTogether) {
    uint8_t codes[kTogether] = {};
    const size_t some = std::min(kTogether, n - i);
    for (size_t k = 0; k < some; ++k) {
      codes[k] = static_cast<uint8_t>(code_at(i + k) >> (8 * planes)) & mask;
    }
    const uint64_t word = join(codes, rest);
    const size_t bytes = (some * static_cast<size_t>(rest) + 7) / 8;
    for (size_t k = 0; k < bytes; ++k) *out++ = static_cast<std::byte>(word >> (8 * k));
  }
}

template <typename T>
void unpack(const std::byte* codes, size_t n, uint64_t low, int bits, std::byte* y) {
  const int planes = bits / 8, rest = bits % 8;
  const std::byte* stream = codes + static_cast<size_t>(planes) * n;
  const auto mask = static_cast<uint64_t>((1 << rest) - 1);
  for (size_t i = 0; i < n; i += kTogether) {
    const size_t some = std::min(kTogether, n - i);
    const size_t bytes = (some * static_cast<size_t>(rest) + 7) / 8;
    uint64_t word = 0;
    for (size_t k = 0; k < bytes; ++k) word |= static_cast<uint64_t>(*stream++) << (8 * k);
    for (size_t k = 0; k < some; ++k) {
      uint64_t code =
          planes < 8 ? (word >> (k * static_cast<size_t>(rest)) & mask) << (8 * planes) : 0;
      for (int plane = 0; plane < planes; ++plane) {
        const std::byte byte = codes[static_cast<size_t>(plane) * n + i + k];
        code |= static_cast<uint64_t>(byte) << (8 * plane);
      }
      const auto value = static_cast<T>(low + code);
      std::memcpy(y + (i + k) * sizeof(T), &value, sizeof(T));
    }
  }
}

/// Calls work with a value of the dtype's C++ type.
template <typename Work>
void with_type(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::kInt8:
      return work(int8_t{});
    case DType::kInt16:
      return work(int16_t{});
    case DType::kUInt16:
      return work(uint16_t{});
    case DType::kInt32:
      return work(int32_t{});
    case DType::kUInt32:
      return work(uint32_t{});
    case DType::kInt64:
      return work(int64_t{});
    case DType::kUInt64:
      return work(uint64_t{});
    case DType::kBool:
      return work(Flag{});
    default:
      return work(uint8_t{});
  }
}

}  // namespace

size_t packed_bytes(size_t n, int bits) {
  const auto rest = static_cast<size_t>(bits % 8);
  return static_cast<size_t>(bits / 8) * n + n / 8 * rest + (n % 8 * rest + 7) / 8;
}

void pack_integers(const void* x, DType dtype, size_t n, int64_t low, int bits, std::byte* out) {
  check(dtype, bits);
  with_type(dtype, [&](auto type) {
    pack<decltype(type)>(static_cast<const std::byte*>(x), n, static_cast<uint64_t>(low), bits,
                         out);
  });
}

void unpack_integers(const std::byte* codes, DType dtype, size_t n, int64_t low, int bits,
                     void* y) {
  check(dtype, bits);
  with_type(dtype, [&](auto type) {
    unpack<decltype(type)>(codes, n, static_cast<uint64_t>(low), bits, static_cast<std::byte*>(y));
  });
}

}  // namespace cgx
