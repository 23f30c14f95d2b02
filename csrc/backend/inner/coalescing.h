// What torch's coalescing manager collects: the works between startCoalescing() and
// endCoalescing(), and the sends and receives that NCCL must run as one batch.
//
// Thread-safe.
#pragma once

#include <mutex>
#include <vector>

#include "backend/adapters/torch_types.h"

namespace cgx {

class Coalescing {
 public:
  void start();
  /// All works since start(), as one.
  WorkPtr end();

  /// Where torch is coalescing, keeps the work for end().
  WorkPtr track(WorkPtr work);
  /// Before a send or a receive on NCCL: one that torch is coalescing belongs to a batch there,
  /// too.
  void join_batch(const BackendPtr& nccl);

 private:
  std::mutex mutex_;  // guards what follows
  bool coalescing_ = false;
  c10d::Backend* batch_ = nullptr;  // has begun one
  std::vector<WorkPtr> works_;
};

}  // namespace cgx
