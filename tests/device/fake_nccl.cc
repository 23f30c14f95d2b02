// A backend of torch that behaves as ProcessGroupNCCL does towards streams, for tensors of the fake
// CUDA device (fake_cuda.cc): a collective is put on a stream of the backend's own behind what the
// caller's current stream holds, the calling thread goes on at once, and wait() makes the current
// stream wait. Gloo carries the bytes, on the stream's thread.
//
// As NCCL's since torch 2.8 it gives no work for a call that is not asynchronous, and its works do
// not know isSuccess(). A send lasts until its message is taken, so sends and receives that cross
// need startCoalescing(). One that is destroyed without shutdown() would abort what is under way:
// unclosed() counts those.
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

namespace {

using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using Tensors = std::vector<at::Tensor>;
using Launch = int (*)(void* stream, void (*function)(void*), void* argument);

Launch launch_host_func() {
  static const auto found =
      reinterpret_cast<Launch>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc"));
  return found;
}

// The memory of a tensor of the device, as the host's.
at::Tensor on_host(const at::Tensor& tensor) {
  return at::for_blob(tensor.data_ptr(), tensor.sizes())
      .options(at::TensorOptions(tensor.scalar_type()))
      .make_tensor();
}

class StreamWork final : public Work {
 public:
  StreamWork(int rank, c10d::OpType op, Tensors outputs)
      : Work(rank, op), done(c10::DeviceType::CUDA), outputs_(std::move(outputs)) {}
  bool isCompleted() override { return done.query(); }
  bool isSuccess() const override {
    C10_THROW_ERROR(NotImplementedError, "isSuccess() is deprecated");
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    done.block(guard.getStream(guard.getDevice()));
  }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{outputs_.front().device()});
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    synchronize();
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

  c10::Event done;

 private:
  const Tensors outputs_;
};

std::atomic<int> unclosed{0};
std::atomic<bool> fails{false};  // the next call

class FakeNccl final : public c10d::Backend {
 public:
  explicit FakeNccl(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)),
        guard_(c10::DeviceType::CUDA),
        own_(guard_.getStreamFromGlobalPool(c10::Device(c10::DeviceType::CUDA, 0))) {}

  ~FakeNccl() override {
    if (!closed_) ++unclosed;
  }
  const std::string getBackendName() const override { return "fake-nccl"; }
  void shutdown() override { closed_ = true; }
  void abort() override { closed_ = true; }

  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_splits,
                        std::vector<int64_t>& in_splits,
                        const c10d::AllToAllOptions& opts) override {
    return run(
        c10d::OpType::ALLTOALL_BASE, {out}, {out, in},
        [=, this, gloo = gloo_]() mutable {
          at::Tensor to = on_host(out), from = on_host(in);
          gloo->alltoall_base(to, from, out_splits, in_splits, opts)->wait();
        },
        opts.asyncOp);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& opts) override {
    return run(
        c10d::OpType::_ALLGATHER_BASE, {out}, {out, in},
        [=, gloo = gloo_] {
          at::Tensor to = on_host(out), from = on_host(in);
          gloo->_allgather_base(to, from, opts)->wait();
        },
        opts.asyncOp);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return run(
        c10d::OpType::ALLREDUCE, tensors, tensors,
        [=, gloo = gloo_] {
          Tensors memory = {on_host(tensors.front())};
          gloo->allreduce(memory, opts)->wait();
        },
        opts.asyncOp);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return run(
        c10d::OpType::BROADCAST, tensors, tensors,
        [=, gloo = gloo_] {
          Tensors memory = {on_host(tensors.front())};
          gloo->broadcast(memory, opts)->wait();
        },
        opts.asyncOp);
  }
  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return point_to_point(c10d::OpType::SEND, tensors, [=, gloo = gloo_](Tensors& memory) {
      return gloo->send(memory, peer, tag);
    });
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return point_to_point(c10d::OpType::RECV, tensors, [=, gloo = gloo_](Tensors& memory) {
      return gloo->recv(memory, peer, tag);
    });
  }

  void startCoalescing() override { batch_.emplace(); }
  WorkPtr endCoalescing() override {
    const std::vector<Begun> batch = std::move(batch_).value();
    batch_.reset();
    if (batch.empty()) return nullptr;
    Tensors used;
    for (const Begun& one : batch) used.push_back(one.tensor);
    return run(c10d::OpType::COALESCED, used, used, [batch] {
      std::vector<Tensors> memory;
      std::vector<WorkPtr> works;
      for (const Begun& one : batch) memory.push_back({on_host(one.tensor)});
      for (size_t i = 0; i < batch.size(); ++i) works.push_back(batch[i].begin(memory[i]));
      for (const WorkPtr& work : works) work->wait();
    });
  }

 private:
  struct Begun {
    at::Tensor tensor;
    std::function<WorkPtr(Tensors&)> begin;
  };

  WorkPtr point_to_point(c10d::OpType op, const Tensors& tensors,
                         const std::function<WorkPtr(Tensors&)>& begin) {
    if (batch_) {
      batch_->push_back({tensors.front(), begin});
      return nullptr;
    }
    return run(op, tensors, tensors, [=] {
      Tensors memory = {on_host(tensors.front())};
      begin(memory)->wait();
    });
  }

  // Tensors are kept until the work is done: as NCCL's backend does.
  WorkPtr run(c10d::OpType op, const Tensors& outputs, const Tensors& used,
              std::function<void()> body, bool asynchronous = true) {
    if (fails.exchange(false)) C10_THROW_ERROR(DistBackendError, "fake NCCL: told to fail");
    for (const at::Tensor& tensor : used) {
      TORCH_CHECK(tensor.is_cuda() && tensor.is_contiguous(), "fake NCCL: ", tensor.device());
    }
    c10::Event ready(c10::DeviceType::CUDA);
    ready.record(guard_.getStream(own_.device()));
    ready.block(own_);
    auto work = c10::make_intrusive<StreamWork>(getRank(), op, outputs);
    auto* task = new std::function<void()>([body = std::move(body), used] { body(); });
    const int error = launch_host_func()(
        own_.native_handle(),
        [](void* argument) {
          const std::unique_ptr<std::function<void()>> owned(
              static_cast<std::function<void()>*>(argument));
          try {
            (*owned)();
          } catch (const std::exception& e) {
            // A peer has gone: NCCL would wait for its watchdog; this one lets the stream go on.
            std::fprintf(stderr, "fake NCCL: %s\n", e.what());
          }
        },
        task);
    TORCH_CHECK(error == 0, "fake NCCL: cuLaunchHostFunc failed with ", error);
    work->done.record(own_);
    if (asynchronous) return work;
    work->synchronize();
    return nullptr;
  }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream own_;
  std::atomic<bool> closed_{false};
  std::optional<std::vector<Begun>> batch_;  // between startCoalescing() and endCoalescing()
};

}  // namespace

PYBIND11_MODULE(_fake_nccl, m) {
  pybind11::module_::import("torch.distributed");
  pybind11::class_<FakeNccl, c10::intrusive_ptr<FakeNccl>, c10d::Backend>(m, "FakeNccl")
      .def(pybind11::init([](const c10::intrusive_ptr<c10d::Backend>& gloo) {
        return c10::make_intrusive<FakeNccl>(gloo);
      }));
  m.def("fail_once", [] { fails = true; });
  m.def("unclosed", [] { return unclosed.load(); });
}
