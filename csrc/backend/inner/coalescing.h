// The works that torch's coalescing manager collects between startCoalescing() and endCoalescing(),
// and the sends and receives that NCCL must run as one batch.
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

  /// Keeps the work for end() if torch is coalescing.
  WorkPtr track(WorkPtr work);
  /// Before a send or a receive on NCCL: if torch is coalescing, begins a batch of NCCL.
  void join_batch(const BackendPtr& nccl);

 private:
  std::mutex mutex_;  // guards what follows
  bool coalescing_ = false;
  c10d::Backend* batch_ = nullptr;  // has begun one
  std::vector<WorkPtr> works_;
};

}  // namespace cgx
