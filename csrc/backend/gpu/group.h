// Communicators and engine of a group for the tensors of a GPU: made by the first call that needs
// them, as torch's own backends do. All ranks are in that call.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "backend/gpu/lane.h"
#include "backend/gpu/plan_agreement.h"
#include "backend/group_context.h"
#include "reduce/engine.h"

namespace cgx {

/// Thread-safety: as c10d::Backend; engine() from any thread.
class GpuGroup {
 public:
  /// Both outlive this object. `host`: the group's engine for tensors of the host.
  GpuGroup(const GroupContext& group, Engine& host)
      : group_(group), host_(host), plans_(group, host) {}

  /// Communicators and engine of the first GPU whose tensors are reduced. Collective. ValueError
  /// for a tensor of another GPU.
  GpuLane& lane(const at::Tensor& tensor);
  /// True if the lane carries moves (broadcast, all-to-all ...), also before it is made: its messages
  /// have headers, and one communicator reaches all ranks. Equal on all ranks.
  bool moves() const;
  /// Null before the first call on a GPU's tensors. Callers may hold Python's lock.
  Engine* engine() const { return engine_; }
  PlanAgreement& plans() { return plans_; }

  /// In a forked child: leaks the lane, whose device belongs to the parent.
  void abandon() { (void)lane_.release(); }

 private:
  const GroupContext& group_;
  Engine& host_;
  PlanAgreement plans_;
  std::mutex mutex_;  // guards the making of lane_; its holder may wait for peers, and for
                      // Python's lock
  std::unique_ptr<GpuLane> lane_;  // null before the first call on a GPU's tensors
  int lanes_begun_ = 0;            // guarded by mutex_
  std::atomic<Engine*> engine_{nullptr};
};

}  // namespace cgx
