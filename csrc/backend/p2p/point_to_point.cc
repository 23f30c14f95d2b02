// Sends and receives of a group: over shared memory where all ranks share some, else over the inner
// backends.
#include <ATen/core/Tensor.h>

#include <optional>

#include "backend/inner/gloo_tensors.h"
#include "backend/process_group_cgx.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

CallShape message_call(c10d::OpType op, const at::Tensor& tensor, int peer = -1) {
  CallShape shape{op, std::nullopt, tensor.scalar_type(), tensor.numel(), peer};
  shape.cuda = tensor.is_cuda();
  return shape;
}

}  // namespace

bool ProcessGroupCGX::over_mail(const at::Tensor& tensor) const {
  if (mail_ == nullptr || tensor.layout() != at::kStrided) return false;
  return tensor.device().is_cpu() || (tensor.is_cuda() && !inner_->gpu_has_nccl());
}

WorkPtr ProcessGroupCGX::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = single("send", tensors);
  if (over_mail(tensor)) return mail_->send(tensor, peer, tag);
  const at::Tensor sent = readable(tensor);
  const at::Tensor moved = needs_bytes(sent) ? as_bytes(sent) : sent;
  return forwarder_->forward(
      message_call(c10d::OpType::SEND, tensor, peer), tensors, {}, c10d::kUnsetTimeout, [&] {
        BackendPtr backend = forwarder_->backend_for_batch(moved);
        if (moved.device().is_cpu()) {
          return messages_->send(backend, moved, {tensor.scalar_type(), tensor.numel()}, peer, tag);
        }
        Tensors one = {moved};
        return backend->send(one, peer, tag);
      });
}

WorkPtr ProcessGroupCGX::receive(Tensors& tensors, std::optional<int> peer, int tag) {
  check_writable("recv", tensors);
  const at::Tensor& tensor = single("recv", tensors);
  if (over_mail(tensor)) return mail_->receive(tensor, peer, tag);
  const at::Tensor memory = writable(tensor);
  const at::Tensor moved = needs_bytes(memory) ? as_bytes(memory) : memory;
  std::shared_ptr<LastStep> last;
  if (!memory.is_same(tensor)) {
    last = std::make_shared<LastStep>(Tensors{tensor, memory},
                                      [tensor, memory] { tensor.copy_(memory); });
  }
  const CallShape shape = peer ? message_call(c10d::OpType::RECV, tensor, *peer)
                               : message_call(c10d::OpType::RECVANYSOURCE, tensor);
  return forwarder_->forward(
      shape, {}, tensors, c10d::kUnsetTimeout,
      [&] {
        BackendPtr backend =
            peer ? forwarder_->backend_for_batch(moved) : forwarder_->backend_for(moved);
        if (moved.device().is_cpu()) {
          return messages_->receive(backend, moved, {tensor.scalar_type(), tensor.numel()},
                                    peer.value_or(GlooMessages::kAnyRank), tag);
        }
        Tensors one = {moved};
        return peer ? backend->recv(one, *peer, tag) : backend->recvAnysource(one, tag);
      },
      last);
}

WorkPtr ProcessGroupCGX::recv(Tensors& tensors, int peer, int tag) {
  return receive(tensors, peer, tag);
}

WorkPtr ProcessGroupCGX::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, std::nullopt, tag);
}

}  // namespace cgx
