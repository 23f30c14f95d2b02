// Check of the error feedback that a call is given.
#pragma once

#include <vector>

#include "backend/adapters/torch_types.h"
#include "reduce/plan/plan.h"

namespace cgx {

/// A residual belongs to the values of `input`, and is written while the tensors are. ValueError,
/// TypeError: it does not fit, or one of the layers' codecs takes none. Undefined: nothing to check.
void check_residual(const char* what, const at::Tensor& residual, const at::Tensor& input,
                    const at::Tensor& output, const std::vector<Layer>& layers);

}  // namespace cgx
