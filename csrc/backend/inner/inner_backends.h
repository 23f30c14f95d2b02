// The backends of torch for all calls that the engine does not take: Gloo, and NCCL for the tensors
// of a GPU where the configuration and this torch have it.
//
// Thread-safety: all but shutdown() and abandon(), from any thread.
#pragma once

#include <mutex>

#include "backend/adapters/torch_types.h"
#include "backend/group_context.h"

namespace cgx {

class InnerBackends {
 public:
  /// Makes the inner backend over Gloo. Collective.
  explicit InnerBackends(const GroupContext& group);

  /// RuntimeError after destroy_gloo().
  BackendPtr gloo() const;
  /// True if NCCL serves the calls on CUDA tensors that the engine does not take.
  bool gpu_has_nccl() const;
  /// The inner backend for this tensor. The first call that needs NCCL creates its backend; that
  /// call is collective.
  BackendPtr for_tensor(const at::Tensor& tensor);

  void set_timeout(std::chrono::milliseconds timeout);
  void shutdown();
  /// Destroys Gloo's, on a thread of Gloo itself elsewhere. The caller does not hold Python's lock.
  void destroy_gloo();
  /// In a forked child: leaks both, whose threads stayed in the parent.
  void abandon();

 private:
  const GroupContext& group_;
  mutable std::mutex gloo_mutex_;  // guards gloo_
  BackendPtr gloo_;                // null after destroy_gloo()
  std::mutex mutex_;  // guards the making of nccl_; its holder may wait for peers, and for
                      // Python's lock
  BackendPtr nccl_;   // null before the first call on a GPU's tensors
};

}  // namespace cgx
