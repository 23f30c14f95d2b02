#include "codec/bounded/ans/loops.h"

#include "codec/bounded/ans/coder.h"
#include "codec/bounded/ans/window.h"

namespace cgx::bounded::ans {
namespace {

// For each set of eight states that take a word: which of the words each of them takes.
struct Expand {
  uint8_t places[256][8];
};
constexpr Expand make_expand() {
  Expand made{};
  for (unsigned set = 0; set < 256; ++set) {
    uint8_t next = 0;
    for (unsigned k = 0; k < 8; ++k)
      made.places[set][k] = (set >> k & 1) != 0 ? next++ : uint8_t{0};
  }
  return made;
}
[[maybe_unused]] constexpr Expand kExpand = make_expand();

}  // namespace
}  // namespace cgx::bounded::ans

#define CGX_LEVEL_FILE "codec/bounded/ans/loops-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::bounded::ans {

const Loops& loops() {
  static constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);
  return cpu::at_level(kByLevel);
}

}  // namespace cgx::bounded::ans
