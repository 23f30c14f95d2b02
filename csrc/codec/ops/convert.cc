#include "codec/ops/convert.h"

#include "base/float_mode.h"
#include "codec/ops/finite.h"
#include "codec/ops/kernels.h"

namespace cgx {
namespace {

const std::byte* bytes(const void* x) { return static_cast<const std::byte*>(x); }

}  // namespace

bool all_finite(const void* x, DType dtype, size_t n) {
  return cpu::kernels().all_finite(bytes(x), dtype, n);
}

void to_float(const void* x, DType dtype, size_t n, float* y) {
  FloatMode mode;
  cpu::kernels().to_float(bytes(x), dtype, n, y);
}

void from_float(const float* x, DType dtype, size_t n, void* y) {
  FloatMode mode;
  cpu::kernels().from_float(x, dtype, n, static_cast<std::byte*>(y));
}

void add_to_float(const void* x, DType dtype, size_t n, float* y) {
  FloatMode mode;
  cpu::kernels().add_to_float(bytes(x), dtype, n, y);
}

void add_pair(const float* a, const float* b, size_t n, float* y) {
  FloatMode mode;
  cpu::kernels().add_pair(a, b, n, y);
}

void divide(float* y, size_t n, float divisor) {
  FloatMode mode;
  cpu::kernels().divide(y, n, divisor);
}

}  // namespace cgx
