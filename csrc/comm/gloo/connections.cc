#include "comm/gloo/connections.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <chrono>
#include <string_view>
#include <utility>

#include "comm/gloo/error_text.h"

namespace cgx {
namespace {

// No message is ever sent with these tags.
constexpr int kNobodyUses = INT32_MAX;
constexpr int kNobodySends = kNobodyUses - 1;

at::Tensor one_byte() { return at::empty({1}, at::TensorOptions(at::kByte)); }

}  // namespace

GlooConnections::GlooConnections(BackendPtr backend)
    : backend_(std::move(backend)),
      sentinels_(static_cast<size_t>(backend_->getSize())),
      broken_(sentinels_.size()) {
  if (backend_->getBackendName() != "gloo") return;
  const at::RecordFunctionGuard unseen(false);  // they outlive a profile: see point_to_point.cc
  for (int i = 1; i < backend_->getSize(); ++i) {
    const int peer = (backend_->getRank() + i) % backend_->getSize();
    std::vector<at::Tensor> nothing = {one_byte()};
    try {
      sentinels_[static_cast<size_t>(peer)] = backend_->recv(nothing, peer, kNobodySends);
    } catch (const std::exception& e) {
      broken_[static_cast<size_t>(peer)] = plain_text(e);
    }
  }
}

// wait() after abort() returns at once: it throws if the receive has failed, and returns false if it
// is still pending. Both can be called again.
std::string GlooConnections::broken(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string& known = broken_[static_cast<size_t>(peer)];
  const WorkPtr& sentinel = sentinels_[static_cast<size_t>(peer)];
  if (closed_ || !known.empty() || !sentinel) return closed_ ? std::string() : known;
  try {
    sentinel->abort();
    sentinel->wait(std::chrono::seconds(1));
  } catch (const std::exception& e) {
    known = plain_text(e);
  }
  return known;
}

void GlooConnections::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  std::vector<at::Tensor> nothing = {one_byte()};
  for (int i = 1; i < backend_->getSize(); ++i) {
    const int peer = (backend_->getRank() + i) % backend_->getSize();
    try {
      backend_->recv(nothing, peer, kNobodyUses)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception& e) {
      // If this connection was closed already, the wait did not time out, and closed nothing.
      if (std::string_view(e.what()).find("imed out") != std::string_view::npos) return;
    }
  }
}

}  // namespace cgx
