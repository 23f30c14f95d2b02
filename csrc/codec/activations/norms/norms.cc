#include "codec/activations/norms/norms.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/float_mode.h"
#include "codec/activations/norms/loops.h"
#include "codec/ops/convert.h"

#define CGX_LEVEL_SCALAR
#define CGX_LEVEL_FILE "codec/activations/norms/loops-inl.h"
#include "codec/ops/foreach_level-inl.h"

namespace cgx {
namespace norms {
namespace {

constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);

}  // namespace
}  // namespace norms

void norm_backward(const Norm& norm, DType dtype, size_t rows, const void* dy, const void* y,
                   const float* rstd, void* dx, float* dweight, float* dbias) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16) {
    throw ConfigError(
        str_of("norm_backward takes float32, float16 and bfloat16, not ", name_of(dtype)));
  }
  FloatMode mode;
  norms::Row* const row = cpu::at_level(norms::kByLevel).row;
  const size_t width = norm.width;
  // Sums of the block, also where only one of the two is asked for.
  std::vector<float> spare;
  if ((dweight == nullptr) != (dbias == nullptr)) {
    spare.resize(width);
    (dweight == nullptr ? dweight : dbias) = spare.data();
  }
  if (dweight != nullptr) {
    std::fill_n(dweight, width, 0.0f);
    std::fill_n(dbias, width, 0.0f);
  }
  const auto at = [&](auto* p, size_t i) { return p + i * width * size_of(dtype); };
  const auto* from = static_cast<const std::byte*>(dy);
  const auto* out = static_cast<const std::byte*>(y);
  auto* to = static_cast<std::byte*>(dx);
  const bool wide = dtype == DType::kFloat32;
  std::vector<float> buffer(wide ? 0 : 3 * width);
  float *a = buffer.data(), *b = a + width, *c = b + width;
  for (size_t i = 0; i < rows; ++i) {
    if (wide) {
      row(norm, reinterpret_cast<const float*>(at(from, i)),
          reinterpret_cast<const float*>(at(out, i)), rstd[i],
          to == nullptr ? nullptr : reinterpret_cast<float*>(at(to, i)), dweight, dbias);
      continue;
    }
    to_float(at(from, i), dtype, width, a);
    to_float(at(out, i), dtype, width, b);
    row(norm, a, b, rstd[i], to == nullptr ? nullptr : c, dweight, dbias);
    if (to != nullptr) from_float(c, dtype, width, at(to, i));
  }
}

}  // namespace cgx
