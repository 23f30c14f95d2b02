// The loops of `trellis`: the oracle, one value at a time, through the formulas, which runs on every CPU;
// and those of each SIMD level.
#include "codec/families/trellis/loops.h"

#include "codec/families/trellis/formulas.h"
#include "codec/levels/tree.h"
#include "codec/rotation/scalar-inl.h"

namespace cgx::trellis {
namespace scalar {
namespace {

struct Quantizer {
  explicit Quantizer(int width) : bits(width), all(kLevels + first_level(width)) {}

  void quantize(const float* z, uint32_t n, float inverse, uint8_t* codes, float* c) {
    uint32_t steps[rotation::kLargestBlock / kSequences];
    for (uint32_t first = 0; first < kSequences && first < n; ++first) {
      Costs costs = Costs::start();
      uint32_t t = 0;
      for (uint32_t i = first; i < n; i += kSequences) {
        steps[t++] = advance(costs, rn_mul(z[i], inverse), all, bits);
      }
      uint32_t state = best_state(costs);
      while (t-- > 0) {
        codes[first + t * kSequences] = static_cast<uint8_t>(step_back(steps[t], state));
      }
    }
    levels(codes, n, c);
  }

  void levels(const uint8_t* codes, uint32_t n, float* c) {
    const auto at = [&](uint32_t i, uint32_t back) -> uint32_t {
      return i < back ? 0 : codes[i - back];
    };
    for (uint32_t i = 0; i < n; ++i) {
      c[i] = level_of(codes[i], at(i, kSequences), at(i, 2 * kSequences), all);
    }
  }

  int bits;
  const float* all;
};

constexpr rotation::Loops kLoops{rotation::scalar::encode<Quantizer>,
                                 rotation::scalar::decode<Quantizer>};

}  // namespace
}  // namespace scalar
}  // namespace cgx::trellis

#define CGX_LEVEL_FILE "codec/families/trellis/loops-inl.h"
#include "codec/ops/foreach_level-inl.h"

namespace cgx::trellis {

const cpu::ByLevel<rotation::Loops> kLoops = CGX_BY_LEVEL(kLoops);

}  // namespace cgx::trellis
