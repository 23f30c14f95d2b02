#include "codec/bounded/repeats.h"

#include <cstdint>
#include <vector>

#include "codec/bounded/bytes.h"

namespace cgx::bounded {

bool repeats(std::span<const std::byte> bytes, size_t each) {
  constexpr size_t kLength = 32, kShare = 20, kFew = 64;
  constexpr int kOneOf = 5, kSlotBits = 14;  // one place in 2^5, by its content
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  if (bytes.size() < kLength) return false;
  std::vector<uint32_t> seen(size_t{1} << kSlotBits);  // marks of what followed such places
  size_t looked = 0, known = 0;
  for (size_t at = 0; at + kLength <= bytes.size(); at += each) {
    const uint64_t begin = get<uint64_t>(bytes.data(), at) * kFactor;
    if (begin >> (64 - kOneOf) != 0) continue;
    uint64_t mark = begin;
    for (size_t k = 8; k < kLength; k += 8) {
      mark = (mark ^ (mark >> 29) ^ get<uint64_t>(bytes.data(), at + k)) * kFactor;
    }
    uint32_t& slot = seen[mark >> (64 - kSlotBits)];
    const auto rest = static_cast<uint32_t>(mark) | 1;
    known += slot == rest ? 1 : 0;
    slot = rest;
    ++looked;
  }
  return looked >= kFew && known * kShare >= looked;
}

}  // namespace cgx::bounded
