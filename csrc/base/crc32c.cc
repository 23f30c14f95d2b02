#include "base/crc32c.h"

#include <array>
#include <cstring>

namespace cgx {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // bits reversed

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: what byte b does when k more bytes follow it.
Tables make_tables() {
  Tables tables;
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = before >> 8 ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

#if defined(__x86_64__)
// Three stretches at a time: the instruction takes one step a cycle, but three until its result.
constexpr size_t kStretch = 2048;

// What kStretch bytes of 0 make of a CRC, by its four bytes: CRCs are linear.
using Stretched = std::array<std::array<uint32_t, 256>, 4>;

__attribute__((target("sse4.2"))) Stretched make_stretched() {
  Stretched stretched{};
  for (size_t bit = 0; bit < 32; ++bit) {
    uint64_t crc = uint64_t{1} << bit;
    for (size_t at = 0; at < kStretch; at += 8) crc = __builtin_ia32_crc32di(crc, 0);
    for (size_t b = 0; b < 256; ++b) {
      if ((b >> bit % 8 & 1) != 0) stretched[bit / 8][b] ^= static_cast<uint32_t>(crc);
    }
  }
  return stretched;
}

uint64_t stretch(const Stretched& stretched, uint64_t crc) {
  uint32_t out = 0;
  for (size_t k = 0; k < 4; ++k) out ^= stretched[k][crc >> (8 * k) & 0xff];
  return out;
}

__attribute__((target("sse4.2"))) uint64_t step(uint64_t crc, const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return __builtin_ia32_crc32di(crc, word);
}

__attribute__((target("sse4.2"))) uint32_t by_instruction(const std::byte* data, size_t bytes) {
  static const Stretched stretched = make_stretched();
  uint64_t crc = 0xffffffff;
  for (; bytes >= 3 * kStretch; bytes -= 3 * kStretch, data += 3 * kStretch) {
    uint64_t second = 0, third = 0;
    for (size_t at = 0; at < kStretch; at += 8) {
      crc = step(crc, data + at);
      second = step(second, data + kStretch + at);
      third = step(third, data + 2 * kStretch + at);
    }
    crc = stretch(stretched, stretch(stretched, crc) ^ second) ^ third;
  }
  for (; bytes >= 8; bytes -= 8, data += 8) crc = step(crc, data);
  auto rest = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes, ++data) {
    rest = __builtin_ia32_crc32qi(rest, static_cast<unsigned char>(*data));
  }
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_by_tables(const void* data, size_t bytes) {
  static const Tables tables = make_tables();
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t crc = 0xffffffff;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint32_t next = 0;
    for (size_t k = 0; k < 8; ++k) {
      const uint32_t byte = at[k] ^ (k < 4 ? crc >> (8 * k) & 0xff : 0);
      next ^= tables[7 - k][byte];
    }
    crc = next;
  }
  for (; bytes > 0; --bytes, ++at) crc = crc >> 8 ^ tables[0][(crc ^ *at) & 0xff];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return by_instruction(static_cast<const std::byte*>(data), bytes);
#endif
  return crc32c_by_tables(data, bytes);
}

}  // namespace cgx
