#include "backend/inner/coalescing.h"

#include <utility>

#include "backend/work/works.h"

namespace cgx {

void Coalescing::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  // An exception inside torch's coalescing manager ends it without endCoalescing().
  works_.clear();
  if (auto* batch = std::exchange(batch_, nullptr)) batch->endCoalescing();
  coalescing_ = true;
}

WorkPtr Coalescing::end() {
  std::vector<WorkPtr> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(coalescing_, "cgx: endCoalescing() without startCoalescing()");
    coalescing_ = false;
    works.swap(works_);
    if (auto* batch = std::exchange(batch_, nullptr)) {
      // In front: what is left to do after a receive of the batch comes after the batch.
      if (WorkPtr work = batch->endCoalescing()) works.insert(works.begin(), std::move(work));
    }
  }
  return c10::make_intrusive<GroupedWork>(std::move(works), Tensors());
}

WorkPtr Coalescing::track(WorkPtr work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (coalescing_) works_.push_back(work);
  return work;
}

void Coalescing::join_batch(const BackendPtr& nccl) {
  std::lock_guard<std::mutex> lock(mutex_);
  // NCCL runs sends and receives one after the other: two ranks that each send first would wait for
  // ever. Only within a batch do sends and receives run together.
  if (!coalescing_ || batch_ != nullptr) return;
  batch_ = nccl.get();
  nccl->startCoalescing();
}

}  // namespace cgx
