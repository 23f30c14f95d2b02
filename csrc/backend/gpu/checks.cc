#include "backend/gpu/checks.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "tensors/gpu/stream.h"

namespace cgx {

void refuse_in_capture(const char* what, const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  refuse_capture(guard.getStream(tensor.device()), what,
                 "numbers of calls, deadlines and checks of the peers belong to");
}

void check_same_device(const char* what, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK_VALUE(one.device() == other.device(), "cgx: ", what, " of tensors on ", one.device(),
                    " and ", other.device(), "; they must be on the same device");
}

}  // namespace cgx
