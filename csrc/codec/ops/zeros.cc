#include "codec/ops/zeros.h"

#include <cstdint>
#include <cstring>

namespace cgx::cpu {
namespace {

/// A float is zero if no bit but the sign is set, whatever its format.
template <typename Bits>
bool search(const std::byte* x, size_t n) {
  // Steps without a branch, which compilers turn into vectors.
  constexpr size_t kStep = 256;
  for (size_t start = 0; start < n; start += kStep) {
    const size_t end = n - start < kStep ? n : start + kStep;
    Bits found = 0;
    for (size_t i = start; i < end; ++i) {
      Bits bits;
      std::memcpy(&bits, x + i * sizeof bits, sizeof bits);
      found |= static_cast<Bits>(static_cast<Bits>(bits << 1) == 0);
    }
    if (found != 0) return true;
  }
  return false;
}

}  // namespace

bool holds_zero(const std::byte* x, size_t n, size_t bytes) {
  return bytes == 4 ? search<uint32_t>(x, n) : search<uint16_t>(x, n);
}

}  // namespace cgx::cpu
