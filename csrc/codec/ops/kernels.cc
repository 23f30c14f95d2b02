// The shared loops: one value at a time, which runs on every CPU, and at each level.
#include "codec/ops/kernels.h"

#include "base/host_device.h"
#include "codec/ops/scalar-inl.h"

namespace cgx::cpu {
namespace scalar {
namespace {

bool all_finite(const std::byte* x, DType dtype, size_t n) {
  return with_dtype(dtype, [&]<DType type>() {
    for (size_t i = 0; i < n; ++i) {
      if ((as_bits(load<type>(x, i)) & 0x7f800000) == 0x7f800000) return false;
    }
    return true;
  });
}

void to_float(const std::byte* x, DType dtype, size_t n, float* y) {
  with_dtype(dtype, [&]<DType type>() {
    for (size_t i = 0; i < n; ++i) y[i] = one_nan(load<type>(x, i));
  });
}

void add_to_float(const std::byte* x, DType dtype, size_t n, float* y) {
  with_dtype(dtype, [&]<DType type>() {
    for (size_t i = 0; i < n; ++i) y[i] = one_nan(y[i] + load<type>(x, i));
  });
}

void from_float(const float* x, DType dtype, size_t n, std::byte* y) {
  const std::byte* in = reinterpret_cast<const std::byte*>(x);  // of any alignment
  with_dtype(dtype, [&]<DType type>() {
    for (size_t i = 0; i < n; ++i) store<type>(y, i, load<DType::kFloat32>(in, i));
  });
}

void add_pair(const float* a, const float* b, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = one_nan(a[i] + b[i]);
}

void divide(float* y, size_t n, float divisor) {
  for (size_t i = 0; i < n; ++i) y[i] = one_nan(y[i] / divisor);
}

void scan(const std::byte* x, DType dtype, size_t n, float* min, float* max) {
  const Extremes e = with_dtype(dtype, [&]<DType type>() { return extremes<type>(x, n); });
  *min = e.min;
  *max = e.max;
}

constexpr Kernels kLoops{all_finite, to_float, add_to_float, from_float, add_pair, divide, scan};

}  // namespace
}  // namespace scalar
}  // namespace cgx::cpu

#define CGX_LEVEL_FILE "codec/ops/kernels-inl.h"
#include "codec/ops/foreach_level-inl.h"

namespace cgx::cpu {

const Kernels& kernels() {
  static constexpr ByLevel<Kernels> kByLevel = CGX_BY_LEVEL(kLoops);
  return at_level(kByLevel);
}

}  // namespace cgx::cpu
