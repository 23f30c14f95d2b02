#include "comm/gloo/point_to_point.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/gloo/error_text.h"

namespace cgx {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// No message is ever sent with these tags.
constexpr int kNobodyUses = std::numeric_limits<int>::max();
constexpr int kNobodySends = kNobodyUses - 1;

// The works that abort() must end.
struct LiveWorks {
  std::mutex mutex;
  std::vector<c10d::Work*> works;  // each is held by its WorkPending
  std::string aborted;             // the reason, once abort() was called
};

class WorkPending : public Pending {
 public:
  // Made with the mutex held.
  WorkPending(WorkPtr work, std::string what, std::shared_ptr<LiveWorks> live)
      : live_(std::move(live)), work_(std::move(work)), what_(std::move(what)) {
    live_->works.push_back(work_.get());
  }
  // Gloo releases a transfer's memory when its work is destroyed: here, since there is no other
  // reference to it. (A weak pointer would keep it, too.)
  ~WorkPending() override {
    std::lock_guard<std::mutex> lock(live_->mutex);
    std::erase(live_->works, work_.get());
    work_.reset();
  }

  bool done() override { return finished_; }

  void wait(const Deadline& deadline) override {
    if (finished_) return;
    // Gloo takes 0 as "no timeout given".
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
    bool aborted = false;
    try {
      aborted = !work_->wait(std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception& e) {
      const std::string text = str_of(what_, ": ", plain_text(e));
      // The wait was in whole milliseconds.
      if (deadline.left() < std::chrono::milliseconds(2)) {
        throw TimeoutError(str_of(text, " (after ", deadline.elapsed_text(), ")"));
      }
      throw PeerLostError(text);
    }
    if (aborted) throw AbortedError(what_ + ": aborted");
    finished_ = true;
  }

 private:
  const std::shared_ptr<LiveWorks> live_;
  WorkPtr work_;
  const std::string what_;
  bool finished_ = false;
};

class C10dPointToPoint : public PointToPoint {
 public:
  explicit C10dPointToPoint(BackendPtr inner)
      : inner_(std::move(inner)), name_(inner_->getBackendName()) {}

  int rank() const override { return inner_->getRank(); }
  int size() const override { return inner_->getSize(); }
  const char* name() const override { return name_.c_str(); }
  bool can_poll() const override { return false; }
  // NCCL's transfers are operations of a stream, which cannot be withdrawn.
  bool lets_go() const override { return name_ == "gloo"; }
  // NCCL ignores tags: it matches transfers by their order, which the relay keeps for these tags.
  int tags() const override { return name_ == "gloo" ? std::numeric_limits<int>::max() : 8; }

  std::unique_ptr<Pending> send(int peer, int tag, const std::byte* data, size_t bytes) override {
    std::vector<at::Tensor> tensors = {view(const_cast<std::byte*>(data), bytes)};
    return start(peer, str_of("sending ", bytes, " bytes"),
                 [&] { return inner_->send(tensors, peer, tag); });
  }

  std::unique_ptr<Pending> receive(int peer, int tag, std::byte* data, size_t bytes) override {
    std::vector<at::Tensor> tensors = {view(data, bytes)};
    return start(peer, str_of("receiving up to ", bytes, " bytes"),
                 [&] { return inner_->recv(tensors, peer, tag); });
  }

  // Gloo has no call that returns the state of a connection. wait() after abort() returns at once:
  // it throws if the receive has failed, and returns false if it is still pending. Both can be
  // called again.
  std::string broken(int peer) override {
    std::lock_guard<std::mutex> lock(live_->mutex);
    const auto sentinel = sentinels_.find(peer);
    if (sentinel == sentinels_.end() || !live_->aborted.empty()) return {};
    try {
      sentinel->second->abort();
      sentinel->second->wait(std::chrono::seconds(1));
    } catch (const std::exception& e) {
      return plain_text(e);
    }
    return {};
  }

  // ProcessGroupGloo has no abort() of its own; each of its works has. That ends waits here only:
  // so that peers that wait for this rank, or for one that waits for it, see the end, the
  // connections are closed too, which is what Gloo does after a wait that timed out.
  void abort(const std::string& reason) override {
    {
      std::lock_guard<std::mutex> lock(live_->mutex);
      if (live_->aborted.empty()) live_->aborted = reason.empty() ? "abort() was called" : reason;
      for (c10d::Work* work : live_->works) {
        try {
          work->abort();
        } catch (const std::exception&) {
          // That work has ended with an error already, which is all that is wanted here.
        }
      }
    }
    close_connections(*inner_);
  }

 private:
  static at::Tensor view(std::byte* data, size_t bytes) {
    return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
  }

  template <typename Start>
  std::unique_ptr<Pending> start(int peer, std::string what, const Start& start) {
    std::lock_guard<std::mutex> lock(live_->mutex);
    if (!live_->aborted.empty()) throw AbortedError(str_of(what, ": ", live_->aborted));
    try {
      post_sentinel(peer);
      return std::make_unique<WorkPending>(start(), std::move(what), live_);
    } catch (const std::exception& e) {
      throw PeerLostError(str_of(what, ": ", plain_text(e)));
    }
  }

  // Called with the mutex held, before the first transfer with a peer. Posting a receive sends the
  // peer a small message, which could reset the connection of a peer that is leaving.
  void post_sentinel(int peer) {
    if (name_ != "gloo" || sentinels_.contains(peer)) return;
    std::vector<at::Tensor> nothing = {at::empty({1}, at::TensorOptions(at::kByte))};
    sentinels_.emplace(peer, inner_->recv(nothing, peer, kNobodySends));
  }

  const BackendPtr inner_;
  const std::string name_;
  const std::shared_ptr<LiveWorks> live_ = std::make_shared<LiveWorks>();
  // By peer: a receive that no send matches. It fails when the connection breaks. Guarded by the
  // mutex.
  std::unordered_map<int, WorkPtr> sentinels_;
};

}  // namespace

void close_connections(c10d::Backend& gloo) {
  std::vector<at::Tensor> nothing = {at::empty({1}, at::TensorOptions(at::kByte))};
  for (int i = 1; i < gloo.getSize(); ++i) {
    const int peer = (gloo.getRank() + i) % gloo.getSize();
    try {
      gloo.recv(nothing, peer, kNobodyUses)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception& e) {
      // If this connection was closed already, the wait did not time out, and closed nothing.
      if (std::string_view(e.what()).find("imed out") != std::string_view::npos) return;
    }
  }
}

std::shared_ptr<PointToPoint> make_c10d_point_to_point(c10::intrusive_ptr<c10d::Backend> inner) {
  return std::make_shared<C10dPointToPoint>(std::move(inner));
}

}  // namespace cgx
