#include "codec/bounded/encode/repeats.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "codec/bounded/bytes.h"

namespace cgx::bounded {

namespace {

constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;

}  // namespace

Tally tally_of(std::span<const uint64_t> numbers) {
  const int bits = std::bit_width(2 * numbers.size());
  std::vector<uint64_t> slots(size_t{1} << bits);
  std::vector<uint32_t> counts(slots.size());  // 0: the slot is free
  Tally tally;
  for (const uint64_t number : numbers) {
    size_t slot = static_cast<size_t>((number * kFactor) >> (64 - bits));
    while (counts[slot] != 0 && slots[slot] != number) slot = (slot + 1) % slots.size();
    slots[slot] = number;
    const size_t count = ++counts[slot];
    tally.distinct += count == 1 ? 1 : 0;
    if (count <= tally.count) continue;
    tally.count = count;
    tally.most = number;
  }
  return tally;
}

bool bits_repeat(std::span<const uint64_t> numbers) {
  constexpr size_t kTogether = 8;  // numbers whose bits at a place make a byte
  constexpr int kLongest = 12;     // of a period, in bits
  constexpr double kShare = 0.15;  // of noise it is about 0.05
  size_t varying = 0, alike = 0;
  for (size_t at = 0; at + kTogether <= numbers.size(); at += kTogether) {
    const auto some = numbers.subspan(at, kTogether);
    uint64_t any = 0, all = ~uint64_t{0};
    for (const uint64_t x : some) {
      any |= x;
      all &= x;
    }
    const uint64_t vary = any ^ all;
    int most = 0;
    for (int period = 1; period <= kLongest; ++period) {
      uint64_t same = vary & (vary >> period);
      for (const uint64_t x : some) same &= ~(x ^ (x >> period));
      most = std::max(most, std::popcount(same));
    }
    varying += static_cast<size_t>(std::popcount(vary));
    alike += static_cast<size_t>(most);
  }
  return static_cast<double>(alike) > kShare * static_cast<double>(varying);
}

namespace {

// Whether values of a sample are there again, as they are where rows of up to 10^5 values repeat. Short values are, by
// accident.
bool values_repeat(std::span<const std::byte> bytes, size_t each) {
  constexpr size_t kSampled = 2048, kAgain = 3;
  const size_t n = bytes.size() / each;
  if (each < 4 || n <= kSampled) return true;
  std::vector<uint64_t> sample(kSampled);
  uint64_t place =
      0;  // places without a pattern: a stride may never meet the same column of a table
  for (uint64_t& bits : sample) {
    place = place * 6364136223846793005 + 1442695040888963407;
    const size_t at = static_cast<size_t>((place >> 32) * n >> 32) * each;
    std::memcpy(&bits, bytes.data() + at, each);
  }
  return tally_of(sample).distinct + kAgain <= kSampled;
}

}  // namespace

bool repeats(std::span<const std::byte> bytes, size_t each) {
  constexpr size_t kLength = 32, kShare = 20, kFew = 64;
  constexpr int kOneOf = 5, kSlotBits = 14;  // one place in 2^5, by its content
  if (bytes.size() < kLength || !values_repeat(bytes, each)) return false;
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
