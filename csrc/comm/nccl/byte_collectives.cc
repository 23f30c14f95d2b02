#include "comm/nccl/byte_collectives.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::chrono::milliseconds left(const Deadline& deadline) {
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
  return std::max(time, std::chrono::milliseconds(1));
}

class WorkTicket final : public ByteCollectives::Ticket {
 public:
  WorkTicket(WorkPtr work, c10::Stream stream) : work_(std::move(work)), stream_(stream) {}
  void wait() override {
    if (!work_) return;
    const c10::StreamGuard on(stream_);
    work_->wait();
    work_.reset();
  }

 private:
  WorkPtr work_;
  const c10::Stream stream_;
};

class BackendBytes final : public ByteCollectives {
 public:
  BackendBytes(BackendPtr backend, c10::Stream stream, const char* name)
      : backend_(std::move(backend)), stream_(stream), name_(name) {}

  // A backend that was not shut down aborts what is under way.
  ~BackendBytes() override {
    if (aborted_) return;
    try {
      backend_->shutdown();
    } catch (const std::exception&) {
      // It has failed already.
    }
  }

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  const char* name() const override { return name_; }

  std::unique_ptr<Ticket> all_to_all(const std::byte* from, const std::vector<size_t>& bytes_to,
                                     std::byte* to, const std::vector<size_t>& bytes_of,
                                     const Deadline& deadline) override {
    std::vector<int64_t> in_splits(bytes_to.begin(), bytes_to.end());
    std::vector<int64_t> out_splits(bytes_of.begin(), bytes_of.end());
    at::Tensor in = view(from, std::accumulate(bytes_to.begin(), bytes_to.end(), size_t{0}));
    at::Tensor out = view(to, std::accumulate(bytes_of.begin(), bytes_of.end(), size_t{0}));
    c10d::AllToAllOptions options;
    options.timeout = left(deadline);
    return run([&] { return backend_->alltoall_base(out, in, out_splits, in_splits, options); });
  }

  std::unique_ptr<Ticket> all_gather(const std::byte* from, size_t bytes, std::byte* to,
                                     const Deadline& deadline) override {
    at::Tensor in = view(from, bytes);
    at::Tensor out = view(to, bytes * static_cast<size_t>(size()));
    c10d::AllgatherOptions options;
    options.timeout = left(deadline);
    return run([&] { return backend_->_allgather_base(out, in, options); });
  }

  void abort() override {
    aborted_ = true;
    try {
      backend_->abort();
    } catch (const std::exception&) {
      // It has failed already, or cannot: its own watchdog ends its waits.
    }
  }

 private:
  at::Tensor view(const std::byte* memory, size_t bytes) const {
    return at::for_blob(const_cast<std::byte*>(memory), {static_cast<int64_t>(bytes)})
        .target_device(stream_.device())
        .options(at::TensorOptions(at::kByte).device(stream_.device()))
        .make_tensor();
  }

  template <typename Begin>
  std::unique_ptr<Ticket> run(const Begin& begin) const {
    const c10::StreamGuard on(stream_);
    try {
      return std::make_unique<WorkTicket>(begin(), stream_);
    } catch (const std::exception& e) {
      throw Error(str_of(name_, ": ", e.what()));
    }
  }

  const BackendPtr backend_;
  const c10::Stream stream_;
  const char* const name_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<ByteCollectives> make_byte_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                       c10::Stream stream, const char* name) {
  return std::make_unique<BackendBytes>(std::move(backend), stream, name);
}

}  // namespace cgx
