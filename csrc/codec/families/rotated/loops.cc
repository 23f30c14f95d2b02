// The loops of `rotated`: the oracle, one value at a time, through the formulas, which runs on every CPU;
// and those of each SIMD level.
#include "codec/families/rotated/loops.h"

#include "codec/families/rotated/formulas.h"
#include "codec/families/rotated/tables.h"
#include "codec/rotation/scalar-inl.h"

namespace cgx::rotated {
namespace scalar {
namespace {

struct Quantizer {
  explicit Quantizer(int width) : bits(width), magnitudes(kLevels + first_level(width)) {}

  void quantize(const float* z, uint32_t n, float inverse, uint8_t* codes, float* c) {
    for (uint32_t i = 0; i < n; ++i) {
      codes[i] = static_cast<uint8_t>(code_of(rn_mul(z[i], inverse), magnitudes, bits));
    }
    levels(codes, n, c);
  }
  void levels(const uint8_t* codes, uint32_t n, float* c) {
    for (uint32_t i = 0; i < n; ++i) c[i] = level_of(codes[i], magnitudes, bits);
  }

  int bits;
  const float* magnitudes;
};

constexpr rotation::Loops kLoops{rotation::scalar::encode<Quantizer>,
                                 rotation::scalar::decode<Quantizer>};

}  // namespace
}  // namespace scalar
}  // namespace cgx::rotated

#define CGX_LEVEL_FILE "codec/families/rotated/loops-inl.h"
#include "codec/ops/foreach_level-inl.h"

namespace cgx::rotated {

const cpu::ByLevel<rotation::Loops> kLoops = CGX_BY_LEVEL(kLoops);

}  // namespace cgx::rotated
