#include "backend/inner/inner_backends.h"

#include <pthread.h>

#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/threads.h"

namespace cgx {
namespace {

// Callbacks of forwarded works run on the threads of the inner backend, which names them.
bool on_thread_of_gloo() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::string_view(name).starts_with("pt_gloo");
}

}  // namespace

InnerBackends::InnerBackends(const GroupContext& group)
    : group_(group),
      gloo_(group.factories.inner(store_at(group, "inner"), group.rank, group.size, group.timeout(),
                                  group.address)) {}

bool InnerBackends::gpu_has_nccl() const {
  const std::string& wanted = group_.config.cuda_backend;
  return wanted == "NCCL" || (wanted == "AUTO" && group_.factories.inner_nccl);
}

BackendPtr InnerBackends::gloo() const {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  TORCH_CHECK(gloo_, "cgx: rank ", group_.rank, ": the process group has been destroyed");
  return gloo_;
}

BackendPtr InnerBackends::for_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return gloo();
  if (!gpu_has_nccl()) return gloo();
  TORCH_CHECK_VALUE(group_.factories.inner_nccl,
                    "cgx: CGX_CUDA_BACKEND='NCCL' needs a torch that was ",
                    "built with NCCL, and this one is not; use GLOO");
  std::lock_guard<std::mutex> lock(mutex_);
  if (!nccl_) {
    nccl_ = group_.factories.inner_nccl(store_at(group_, "inner-cuda"), group_.rank, group_.size,
                                        group_.timeout());
    group_.watchdog->attach_also(nccl_);
  }
  return nccl_;
}

void InnerBackends::set_timeout(std::chrono::milliseconds timeout) {
  {
    std::lock_guard<std::mutex> lock(gloo_mutex_);
    if (gloo_) gloo_->setTimeout(timeout);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (nccl_) nccl_->setTimeout(timeout);
}

void InnerBackends::shutdown() {
  if (nccl_) nccl_->shutdown();
  if (gloo_) gloo_->shutdown();
}

void InnerBackends::destroy_gloo() {
  BackendPtr gloo;
  {
    std::lock_guard<std::mutex> lock(gloo_mutex_);
    gloo.swap(gloo_);
  }
  if (gloo && on_thread_of_gloo()) {
    // A callback held the last reference: a thread that joined itself would end the process.
    auto* last = new BackendPtr(std::move(gloo));
    try {
      start_thread("the thread that ends Gloo", [last] { delete last; }).detach();
    } catch (const ResourceError&) {
      // Gloo is left behind, which ends with the process.
    }
  }
}

void InnerBackends::abandon() {
  (void)nccl_.release();
  (void)gloo_.release();
}

}  // namespace cgx
