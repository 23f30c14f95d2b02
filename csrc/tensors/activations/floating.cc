#include "tensors/activations/floating.h"

#include "tensors/checks.h"
#include "tensors/dtypes.h"

namespace cgx {

DType floating_dtype(const char* what, at::ScalarType type) {
  const std::optional<DType> known = dtype_of(type);
  TORCH_CHECK_TYPE(known && *known <= DType::kFloat64, what, " is ", text_of(type),
                   ", allowed: float32, float64, float16, bfloat16");
  return *known;
}

}  // namespace cgx
