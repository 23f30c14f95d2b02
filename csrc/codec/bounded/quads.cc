#include "codec/bounded/quads.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace cgx::bounded {
namespace {

constexpr uint8_t kListed = 3;

uint8_t folded(uint8_t symbol, uint8_t center) {
  const auto distance = static_cast<int8_t>(static_cast<uint8_t>(symbol - center));
  return static_cast<uint8_t>((distance << 1) ^ (distance >> 7));
}

}  // namespace

uint8_t center_of(const uint8_t* symbols, size_t n) {
  std::array<uint32_t, 256> counts{}, others{};
  size_t i = 0;
  for (; i + 2 <= n; i += 2) {
    ++counts[symbols[i]];
    ++others[symbols[i + 1]];
  }
  if (i < n) ++counts[symbols[i]];
  for (size_t s = 0; s < counts.size(); ++s) counts[s] += others[s];
  return static_cast<uint8_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
}

void pack_quads(const uint8_t* symbols, size_t n, uint8_t center, uint8_t* quads,
                std::vector<uint8_t>& others) {
  const size_t before = others.size();
  others.resize(before + n + 1);  // one more: written without a look, then overwritten or cut
  uint8_t* list = others.data() + before;
  for (size_t i = 0; i < n; i += 4) {
    uint8_t quad = 0;
    for (size_t j = 0; j < std::min<size_t>(4, n - i); ++j) {
      const uint8_t symbol = symbols[i + j];
      const uint8_t code = std::min(folded(symbol, center), kListed);
      quad = static_cast<uint8_t>(quad | code << (2 * j));
      *list = symbol;
      list += code == kListed ? 1 : 0;
    }
    quads[i / 4] = quad;
  }
  others.resize(static_cast<size_t>(list - others.data()));
}

bool unpack_quads(const uint8_t* quads, size_t n, uint8_t center, const uint8_t* others,
                  size_t count, uint8_t* symbols) {
  const uint8_t by_code[4] = {center, static_cast<uint8_t>(center - 1),
                              static_cast<uint8_t>(center + 1), 0};
  std::array<uint32_t, 256> by_quad;
  for (size_t quad = 0; quad < by_quad.size(); ++quad) {
    uint8_t four[4];
    for (size_t j = 0; j < 4; ++j) four[j] = by_code[quad >> (2 * j) & 3];
    std::memcpy(&by_quad[quad], four, 4);
  }
  const uint8_t* const end = others + count;
  if (n % 4 != 0 && quads[n / 4] >> (2 * (n % 4)) != 0) return false;
  for (size_t at = 0; at < quad_bytes(n); ++at) {
    const uint8_t quad = quads[at];
    std::memcpy(symbols + 4 * at, &by_quad[quad], 4);
    // Bits of codes that are 3.
    for (unsigned listed = quad & (quad >> 1) & 0x55; listed != 0; listed &= listed - 1) {
      const size_t place = 4 * at + static_cast<size_t>(__builtin_ctz(listed)) / 2;
      if (others == end) return false;
      symbols[place] = *others++;
    }
  }
  return others == end;
}

}  // namespace cgx::bounded
