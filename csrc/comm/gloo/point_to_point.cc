#include "comm/gloo/point_to_point.h"

#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/gloo/error_text.h"

namespace cgx {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Tags of each share; more than a relay with all its lanes needs. Behind the last share are the
// tags of connections.cc.
constexpr int kShareTags = 1 << 14;
static_assert(GlooShare::kMost * kShareTags < kGlooReservedTags - 2);

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

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
  C10dPointToPoint(std::shared_ptr<GlooConnections> connections, GlooShare share)
      : connections_(std::move(connections)),
        inner_(connections_->backend()),
        share_(std::move(share)),
        name_(inner_->getBackendName()) {}

  int rank() const override { return share_.rank; }
  int size() const override { return static_cast<int>(share_.members.size()); }
  const char* name() const override { return name_.c_str(); }
  bool can_poll() const override { return false; }
  // NCCL's transfers are operations of a stream, which cannot be withdrawn.
  bool lets_go() const override { return name_ == "gloo"; }
  // NCCL ignores tags: it matches transfers by their order, which the relay keeps for these tags.
  int tags() const override { return name_ == "gloo" ? kShareTags : 8; }

  std::unique_ptr<Pending> send(int peer, int tag, const std::byte* data, size_t bytes) override {
    std::vector<at::Tensor> tensors = {view(const_cast<std::byte*>(data), bytes)};
    return start(str_of("sending ", bytes, " bytes"),
                 [&] { return inner_->send(tensors, member(peer), own_tag(tag)); });
  }

  std::unique_ptr<Pending> receive(int peer, int tag, std::byte* data, size_t bytes) override {
    std::vector<at::Tensor> tensors = {view(data, bytes)};
    return start(str_of("receiving up to ", bytes, " bytes"),
                 [&] { return inner_->recv(tensors, member(peer), own_tag(tag)); });
  }

  std::string broken(int peer) override { return connections_->broken(member(peer)); }

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
    connections_->close();
  }

 private:
  int member(int peer) const { return share_.members[static_cast<size_t>(peer)]; }
  int own_tag(int tag) const {
    return name_ == "gloo" ? kFirstGlooReservedTag + share_.number * kShareTags + tag : tag;
  }
  static at::Tensor view(std::byte* data, size_t bytes) {
    return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
  }

  template <typename Start>
  std::unique_ptr<Pending> start(std::string what, const Start& start) {
    std::lock_guard<std::mutex> lock(live_->mutex);
    if (!live_->aborted.empty()) throw AbortedError(str_of(what, ": ", live_->aborted));
    // Some receives stay posted between calls. One that torch's profiler has seen begin and that ends
    // after the profile writes to memory of the profile that is freed.
    const at::RecordFunctionGuard unseen(false);
    try {
      return std::make_unique<WorkPending>(start(), std::move(what), live_);
    } catch (const std::exception& e) {
      throw PeerLostError(str_of(what, ": ", plain_text(e)));
    }
  }

  const std::shared_ptr<GlooConnections> connections_;
  const BackendPtr inner_;
  const GlooShare share_;
  const std::string name_;
  const std::shared_ptr<LiveWorks> live_ = std::make_shared<LiveWorks>();
};

}  // namespace

std::shared_ptr<PointToPoint> make_c10d_point_to_point(std::shared_ptr<GlooConnections> connections,
                                                       GlooShare share) {
  return std::make_shared<C10dPointToPoint>(std::move(connections), std::move(share));
}

std::shared_ptr<PointToPoint> make_c10d_point_to_point(c10::intrusive_ptr<c10d::Backend> inner) {
  GlooShare all{0, all_ranks(inner->getSize()), inner->getRank()};
  return make_c10d_point_to_point(std::make_shared<GlooConnections>(std::move(inner)),
                                  std::move(all));
}

}  // namespace cgx
