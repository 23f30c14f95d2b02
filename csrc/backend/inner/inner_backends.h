// The backends of torch for all calls that the engine does not take: Gloo, and NCCL for the tensors
// of a GPU where the configuration and this torch have it.
//
// A group of one host over shared memory seldom needs Gloo, whose sockets and threads each group
// would hold: there the first collective that needs it makes it.
//
// Thread-safety: all but shutdown() and abandon(), from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/group_context.h"
#include "comm/gloo/connections.h"

namespace cgx {

class InnerBackends {
 public:
  explicit InnerBackends(const GroupContext& group) : group_(group) {}

  /// Makes the backend over Gloo with the group, where the addresses of all ranks say. Collective;
  /// no rank may leave before all have made it.
  void connect_gloo(const std::vector<std::string>& addresses);
  /// Where that listens; empty: where Gloo does by itself.
  const std::string& address() const { return address_; }
  /// Of Gloo's backend; null where there is none.
  std::shared_ptr<GlooConnections> connections() const;
  /// Makes it if there is none yet: then collective, and the caller is in a call that the watchdog
  /// knows. The wait for the other ranks ends with the group's timeout, or when `engine` fails. An
  /// error is one on all ranks; another attempt may follow it.
  void ensure_gloo(Engine& engine);
  /// RuntimeError after destroy_gloo(), and before Gloo was made.
  BackendPtr gloo() const;
  bool is_gloo(const BackendPtr& backend) const;
  /// True if NCCL serves the calls on CUDA tensors that the engine does not take.
  bool gpu_has_nccl() const;
  /// The inner backend for this tensor. The first call that needs NCCL creates its backend; that
  /// call is collective.
  BackendPtr for_tensor(const at::Tensor& tensor);

  void set_timeout(std::chrono::milliseconds timeout);
  void enable_timing();
  void shutdown();
  /// Destroys Gloo's. `failed`: the group has, and a collective may be stuck in Gloo until its
  /// timeout: then without waiting for that. The caller does not hold Python's lock.
  void destroy_gloo(bool failed);
  /// In a forked child: leaks both, whose threads stayed in the parent.
  void abandon();

 private:
  using ConnectionsPtr = std::shared_ptr<GlooConnections>;

  ConnectionsPtr make_gloo(const StorePtr& store, const std::vector<std::string>& addresses);
  void keep_gloo(ConnectionsPtr gloo);

  const GroupContext& group_;
  mutable std::mutex gloo_mutex_;  // guards the next three
  ConnectionsPtr gloo_;            // null before it is made, and after destroy_gloo()
  bool destroyed_ = false, timed_ = false;
  std::mutex making_mutex_;  // taken first; its holder may wait for peers, and for Python's lock
  std::string address_;
  int attempts_ = 0;  // to make Gloo; guarded by making_mutex_
  std::mutex mutex_;  // guards the making of nccl_; its holder may wait for peers, and for
                      // Python's lock
  BackendPtr nccl_;   // null before the first call on a GPU's tensors
};

}  // namespace cgx
