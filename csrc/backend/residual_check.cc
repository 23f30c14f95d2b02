#include "backend/residual_check.h"

#include "codec/feedback.h"
#include "tensors/memory.h"

namespace cgx {

void check_residual(const char* what, const at::Tensor& residual, const at::Tensor& input,
                    const at::Tensor& output, const std::vector<Layer>& layers) {
  if (!residual.defined()) return;
  for (const Layer& layer : layers) check_feedback(*layer.codec);
  const auto type = residual.scalar_type();
  TORCH_CHECK_TYPE(type == at::kFloat || type == at::kBFloat16, "cgx: ", what, ": the residual is ",
                   type, "; allowed: float32, bfloat16");
  TORCH_CHECK_TYPE(residual.layout() == at::kStrided && !residual.is_nested(), "cgx: ", what,
                   ": the residual has the layout ", residual.layout(), "; allowed: torch.strided");
  TORCH_CHECK_VALUE(residual.sizes() == input.sizes(), "cgx: ", what,
                    ": the residual has the shape ", residual.sizes(), "; allowed: the input's, ",
                    input.sizes());
  TORCH_CHECK_VALUE(residual.device() == input.device(), "cgx: ", what, ": the residual is on ",
                    residual.device(), "; allowed: the input's device, ", input.device());
  TORCH_CHECK_VALUE(residual.is_contiguous() && !residual.is_neg(), "cgx: ", what,
                    ": the residual is not contiguous (strides ", residual.strides(),
                    ") or lazily negated; allowed: a contiguous tensor");
  check_writable(what, residual);
  TORCH_CHECK_VALUE(!share_memory(residual, input) && !share_memory(residual, output),
                    "cgx: ", what, ": the residual shares memory with the input or the output");
}

}  // namespace cgx
