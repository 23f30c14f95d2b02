#include "codec/bounded/bytes_map.h"

#include <cstring>
#include <vector>

namespace cgx::bounded {
namespace {

// Eight bytes as a matrix of bits, turned: bit i of byte k becomes bit k of byte i (Warren, Hacker's
// Delight, section 7-3).
uint64_t turned(uint64_t x) {
  uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aa;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000cccc0000cccc;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0;
  return x ^ t ^ (t << 28);
}

void to_planes(const std::byte* in, size_t n, size_t each, std::byte* out) {
  for (size_t k = 0; k < each; ++k) {
    for (size_t i = 0; i < n; ++i) out[k * n + i] = in[i * each + k];
  }
}

void from_planes(const std::byte* in, size_t n, size_t each, std::byte* out) {
  for (size_t k = 0; k < each; ++k) {
    for (size_t i = 0; i < n; ++i) out[i * each + k] = in[k * n + i];
  }
}

}  // namespace

void rearrange(Rearranged way, const std::byte* in, size_t n, size_t each, std::byte* out) {
  if (way == Rearranged::kNot) {
    std::memcpy(out, in, n * each);
    return;
  }
  if (way == Rearranged::kBytes) return to_planes(in, n, each, out);
  const size_t whole = n / 8 * 8;
  std::memcpy(out + whole * each, in + whole * each, (n - whole) * each);
  n = whole;
  std::vector<std::byte> planes(n * each);
  to_planes(in, n, each, planes.data());
  const size_t bytes = n / 8;
  for (size_t k = 0; k < each; ++k) {
    for (size_t i = 0; i < bytes; ++i) {
      uint64_t eight;
      std::memcpy(&eight, planes.data() + k * n + 8 * i, 8);
      eight = turned(eight);
      for (size_t bit = 0; bit < 8; ++bit) {
        out[(k * 8 + bit) * bytes + i] = static_cast<std::byte>(eight >> (8 * bit));
      }
    }
  }
}

void arrange_back(Rearranged way, const std::byte* in, size_t n, size_t each, std::byte* out) {
  if (way == Rearranged::kNot) {
    std::memcpy(out, in, n * each);
    return;
  }
  if (way == Rearranged::kBytes) return from_planes(in, n, each, out);
  const size_t whole = n / 8 * 8;
  std::memcpy(out + whole * each, in + whole * each, (n - whole) * each);
  n = whole;
  std::vector<std::byte> planes(n * each);
  const size_t bytes = n / 8;
  for (size_t k = 0; k < each; ++k) {
    for (size_t i = 0; i < bytes; ++i) {
      uint64_t eight = 0;
      for (size_t bit = 0; bit < 8; ++bit) {
        eight |= static_cast<uint64_t>(in[(k * 8 + bit) * bytes + i]) << (8 * bit);
      }
      eight = turned(eight);
      std::memcpy(planes.data() + k * n + 8 * i, &eight, 8);
    }
  }
  from_planes(planes.data(), n, each, out);
}

}  // namespace cgx::bounded
