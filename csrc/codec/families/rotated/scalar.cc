// The oracle of `rotated`: one value at a time, through the formulas. Runs on every CPU.
#include "codec/families/rotated/formulas.h"
#include "codec/families/rotated/loops.h"
#include "codec/rotation/scalar-inl.h"

namespace cgx::rotated {
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

}  // namespace

const rotation::Loops kScalarLoops{rotation::scalar::encode<Quantizer>,
                                   rotation::scalar::decode<Quantizer>};

}  // namespace cgx::rotated
