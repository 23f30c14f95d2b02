#include "backend/inner/inner_backends.h"

#include <pthread.h>

#include <string_view>
#include <utility>

#include "backend/adapters/store_rendezvous.h"
#include "backend/config/handshake.h"
#include "base/deadline.h"
#include "base/error.h"
#include "base/threads.h"
#include "comm/failure.h"
#include "comm/gloo/error_text.h"

namespace cgx {
namespace {

// Callbacks of forwarded works run on the threads of the inner backend, which names them.
bool on_thread_of_gloo() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::string_view(name).starts_with("pt_gloo");
}

}  // namespace

BackendPtr InnerBackends::make_gloo(const StorePtr& store) const {
  return group_.factories.inner(store, group_.rank, group_.size, group_.timeout(), group_.address);
}

void InnerBackends::connect_gloo() { keep_gloo(make_gloo(store_at(group_, "inner"))); }

void InnerBackends::keep_gloo(BackendPtr gloo) {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  if (destroyed_) return;
  gloo->setTimeout(group_.timeout());  // which may have changed meanwhile
  if (timed_) gloo->enableCollectivesTiming();
  gloo_ = std::move(gloo);
}

void InnerBackends::ensure_gloo(Engine& engine) {
  const auto made = [this] {
    std::lock_guard<std::mutex> lock(gloo_mutex_);
    return gloo_ || destroyed_;
  };
  if (made()) return;
  std::lock_guard<std::mutex> one(making_mutex_);
  if (made()) return;
  // A failed attempt leaves keys behind.
  const StorePtr store = store_at(group_, str_of("inner/", attempts_++));
  const auto rendezvous = make_store_rendezvous(store, [this, &engine] {
    if (const auto failure = engine.failure()) throw_failure(*failure);
    std::lock_guard<std::mutex> lock(gloo_mutex_);
    if (destroyed_) {
      throw AbortedError(str_of("rank ", group_.rank, ": the process group has been destroyed"));
    }
  });
  const Deadline deadline = Deadline::after(group_.timeout());
  // Gloo itself waits in the store without a look at the group's failures.
  try {
    confirm(*rendezvous, "call", group_.rank, group_.size, "", deadline);
  } catch (const TimeoutError& e) {
    throw TimeoutError(str_of("the first call that needs Gloo makes it, with all ranks: ", e.what()));
  }
  BackendPtr gloo;
  try {
    gloo = make_gloo(store);
  } catch (const std::exception& e) {
    confirm(*rendezvous, "gloo", group_.rank, group_.size, plain_text(e), deadline);
    throw;
  }
  confirm(*rendezvous, "gloo", group_.rank, group_.size, "", deadline);
  group_.watchdog->attach_inner(gloo);
  keep_gloo(std::move(gloo));
}

bool InnerBackends::gpu_has_nccl() const {
  const std::string& wanted = group_.config.cuda_backend;
  return wanted == "NCCL" || (wanted == "AUTO" && group_.factories.inner_nccl);
}

BackendPtr InnerBackends::gloo() const {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  TORCH_CHECK(gloo_, "cgx: rank ", group_.rank,
              destroyed_ ? ": the process group has been destroyed"
                         : ": this group has no Gloo yet; a collective that needs it makes it");
  return gloo_;
}

bool InnerBackends::is_gloo(const BackendPtr& backend) const {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  return backend == gloo_;
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

void InnerBackends::enable_timing() {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  timed_ = true;
  if (gloo_) gloo_->enableCollectivesTiming();
}

void InnerBackends::shutdown() {
  {
    std::lock_guard<std::mutex> lock(gloo_mutex_);
    destroyed_ = true;
  }
  if (nccl_) nccl_->shutdown();
  if (gloo_) gloo_->shutdown();
}

void InnerBackends::destroy_gloo() {
  BackendPtr gloo;
  {
    std::lock_guard<std::mutex> lock(gloo_mutex_);
    gloo.swap(gloo_);
    destroyed_ = true;
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
