#include "backend/inner/inner_backends.h"

#include <pthread.h>

#include <chrono>
#include <future>
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

// Gloo takes milliseconds, unless a collective of its own is stuck.
constexpr std::chrono::milliseconds kEndsWithin{500};

// Callbacks of forwarded works run on the threads of the inner backend, which names them.
bool on_thread_of_gloo() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::string_view(name).starts_with("pt_gloo");
}

}  // namespace

InnerBackends::ConnectionsPtr InnerBackends::make_gloo(const StorePtr& store,
                                                       const std::vector<std::string>& addresses) {
  if (group_.size > 1) address_ = group_.factories.choose_address(group_.rank, addresses);
  return std::make_shared<GlooConnections>(
      group_.factories.inner(store, group_.rank, group_.size, group_.timeout(), address_));
}

void InnerBackends::connect_gloo(const std::vector<std::string>& addresses) {
  keep_gloo(make_gloo(store_at(group_, "inner"), addresses));
}

void InnerBackends::keep_gloo(ConnectionsPtr gloo) {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  if (destroyed_) return;
  gloo->backend()->setTimeout(group_.timeout());  // which may have changed meanwhile
  if (timed_) gloo->backend()->enableCollectivesTiming();
  gloo_ = std::move(gloo);
}

std::shared_ptr<GlooConnections> InnerBackends::connections() const {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  return gloo_;
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
  std::vector<std::string> addresses;
  try {
    addresses = confirm(*rendezvous, "call", group_.rank, group_.size, "", deadline,
                        group_.factories.report_addresses());
  } catch (const TimeoutError& e) {
    throw TimeoutError(
        str_of("the first call that needs Gloo makes it, with all ranks: ", e.what()));
  }
  ConnectionsPtr gloo;
  try {
    gloo = make_gloo(store, addresses);
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
  return gloo_->backend();
}

bool InnerBackends::is_gloo(const BackendPtr& backend) const {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  return gloo_ && backend == gloo_->backend();
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
    if (gloo_) gloo_->backend()->setTimeout(timeout);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (nccl_) nccl_->setTimeout(timeout);
}

void InnerBackends::enable_timing() {
  std::lock_guard<std::mutex> lock(gloo_mutex_);
  timed_ = true;
  if (gloo_) gloo_->backend()->enableCollectivesTiming();
}

void InnerBackends::shutdown() {
  {
    std::lock_guard<std::mutex> lock(gloo_mutex_);
    destroyed_ = true;
  }
  if (nccl_) nccl_->shutdown();
  if (const ConnectionsPtr gloo = connections()) gloo->backend()->shutdown();
}

void InnerBackends::destroy_gloo(bool failed) {
  ConnectionsPtr gloo;
  {
    std::lock_guard<std::mutex> lock(gloo_mutex_);
    gloo.swap(gloo_);
    destroyed_ = true;
  }
  // A callback of Gloo's held the last reference: a thread that joined itself would end the process.
  const bool inside = on_thread_of_gloo();
  if (!gloo || (!inside && !failed)) return;
  auto last = std::make_shared<ConnectionsPtr>(std::move(gloo));
  auto ended = std::make_shared<std::promise<void>>();
  try {
    start_thread("the thread that ends Gloo", [last, ended] {
      last->reset();
      ended->set_value();
    }).detach();
    if (!inside) ended->get_future().wait_for(kEndsWithin);
  } catch (const ResourceError&) {
    // Gloo is left behind, which ends with the process.
    (void)new std::shared_ptr<ConnectionsPtr>(last);
  }
}

void InnerBackends::abandon() {
  (void)nccl_.release();
  (void)new ConnectionsPtr(gloo_);
}

}  // namespace cgx
