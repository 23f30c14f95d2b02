// The loops of norm_backward(). A file of ops/foreach_level-inl.h. A row is summed in 16 lanes on every
// level: the compiler makes them of the level's vectors.

namespace cgx::norms {
namespace CGX_LEVEL {
namespace {

constexpr size_t kLanes = 16, kEach = 8;

/// Eight values of any alignment; a level without such vectors has them in pieces.
typedef float Eight __attribute__((vector_size(4 * kEach), aligned(4), may_alias));

static inline float sum_of_lanes(float* lanes) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

template <bool sums>
static void add_row(const Norm& norm, const float* dy, const float* y, float* dweight, float* dbias,
                    float* of_g, float* of_product) {
  const float *weight = norm.weight, *bias = norm.bias;
  Eight g_sum[2] = {}, product_sum[2] = {};
  size_t j = 0;
  for (; j + kLanes <= norm.width; j += kLanes) {
    for (size_t k = 0; k < 2; ++k) {
      const size_t at = j + k * kEach;
      const Eight d = *reinterpret_cast<const Eight*>(dy + at);
      const Eight product = d * (*reinterpret_cast<const Eight*>(y + at) -
                                 *reinterpret_cast<const Eight*>(bias + at));
      g_sum[k] += d * *reinterpret_cast<const Eight*>(weight + at);
      product_sum[k] += product;
      if constexpr (sums) {
        *reinterpret_cast<Eight*>(dweight + at) += product;
        *reinterpret_cast<Eight*>(dbias + at) += d;
      }
    }
  }
  __builtin_memcpy(of_g, g_sum, sizeof g_sum);
  __builtin_memcpy(of_product, product_sum, sizeof product_sum);
  for (size_t k = 0; j < norm.width; ++j, ++k) {
    const float product = dy[j] * (y[j] - bias[j]);
    of_g[k] += dy[j] * weight[j];
    of_product[k] += product;
    if constexpr (sums) {
      dweight[j] += product;
      dbias[j] += dy[j];
    }
  }
}

static void row(const Norm& norm, const float* dy, const float* y, float rstd, float* dx,
                float* dweight, float* dbias) {
  float of_g[kLanes], of_product[kLanes];
  if (dweight != nullptr) {
    add_row<true>(norm, dy, y, dweight, dbias, of_g, of_product);
  } else {
    add_row<false>(norm, dy, y, nullptr, nullptr, of_g, of_product);
  }
  if (dx == nullptr) return;
  const float count = static_cast<float>(norm.width);
  const float mean = norm.centred ? sum_of_lanes(of_g) / count : 0.0f;
  const float slope = sum_of_lanes(of_product) / count;
  const float *weight = norm.weight, *bias = norm.bias, *inverse = norm.inverse;
  size_t j = 0;
  for (; j + kEach <= norm.width; j += kEach) {
    const Eight xhat =
        (*reinterpret_cast<const Eight*>(y + j) - *reinterpret_cast<const Eight*>(bias + j)) *
        *reinterpret_cast<const Eight*>(inverse + j);
    const Eight g =
        *reinterpret_cast<const Eight*>(dy + j) * *reinterpret_cast<const Eight*>(weight + j);
    *reinterpret_cast<Eight*>(dx + j) = rstd * (g - mean - xhat * slope);
  }
  for (; j < norm.width; ++j) {
    const float xhat = (y[j] - bias[j]) * inverse[j];
    dx[j] = rstd * (dy[j] * weight[j] - mean - xhat * slope);
  }
}

constexpr Loops kLoops{row};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::norms
