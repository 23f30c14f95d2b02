// A CUDA device for a torch that was built without CUDA, on the stub driver: for tests of what a
// process does with tensors of "cuda:0". tests/device/fake_cuda.py compiles and loads it.
//
// Streams, events and memory are the stub's (stub_driver.cc). Copies, fills and in-place arithmetic
// run on the current stream, on pointers taken at the call, as kernels do: they see what is there
// when their turn comes. Everything else waits for the current stream and runs on the CPU. The
// allocator hands memory out again as torch's does: at once to the stream that it was made on, and
// after the streams that it was recorded on (record_stream). New memory holds NaN.
#include <ATen/core/ivalue.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <vector>

#include "fake_guard.h"
#include "fake_memory.h"
#include "fake_operators.h"
#include "fake_streams.h"

// c10d::GlooAllreduceRegistry().
extern "C" void* gloo_registry() __asm__("_ZN4c10d21GlooAllreduceRegistryEv");

namespace fake_cuda {
namespace {

// ---- what DistributedDataParallel and Gloo look up by the device ----

// DDP's statistics; of the host's clock.
struct HostTimer final : public c10d::Timer {
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    if (!from || !to) return std::nullopt;
    return *to - *from;
  }
};

// Gloo looks its all_reduce up by the device, and a CPU build has none for CUDA (it then crashes).
// This one is the CPU's, on the device's memory, once the current stream has come to rest; what its
// future holds are tensors of the CPU on that memory. Gloo's headers are not installed: only what
// the types of the registry look like in memory counts, which is the same for every pointer, and a
// Gloo AsyncWork begins with its base, Work.
using GlooRegistry = c10::Registry<DeviceType, c10::intrusive_ptr<c10d::Work>,
                                   std::shared_ptr<void>, std::vector<at::Tensor>&, c10d::ReduceOp,
                                   uint32_t, uint64_t, std::chrono::milliseconds>;

c10::intrusive_ptr<c10d::Work> gloo_all_reduce(std::shared_ptr<void> context,
                                               std::vector<at::Tensor>& tensors, c10d::ReduceOp op,
                                               uint32_t tag, uint64_t number,
                                               std::chrono::milliseconds timeout) {
  std::vector<at::Tensor> views;
  for (const at::Tensor& tensor : tensors) {
    synchronize(stream_of(tensor));
    views.push_back(at::from_blob(
        tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
        at::TensorOptions().dtype(tensor.scalar_type())));
  }
  static auto* registry = reinterpret_cast<GlooRegistry*>(gloo_registry());
  return registry->Create(DeviceType::CPU, std::move(context), views, std::move(op), tag, number,
                          timeout);
}

// ---- for the tests alone ----

// Holds streams until it is opened: order is then tested without a clock.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  int reached = 0;

  void pass() {
    std::unique_lock<std::mutex> lock(mutex);
    ++reached;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
  }
  void release() {
    std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
  void await(int count) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return reached >= count; });
  }
};

struct Future {
  c10::intrusive_ptr<c10::ivalue::Future> future;
};

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

PYBIND11_MODULE(_fake_cuda, m) {
  stub();
  static const auto* guard = new Guard;
  c10::impl::registerDeviceGuard(DeviceType::CUDA, guard);
  c10::SetAllocator(DeviceType::CUDA, &allocator());
  at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs) {
    return std::unique_ptr<at::CUDAHooksInterface>(new CUDAHooks({}));
  });
  TORCH_CHECK(at::detail::getCUDAHooks().hasCUDA(),
              "torch looked for CUDA before: load the "
              "fake device before torch");

  c10d::TimerRegistry()->Register(
      DeviceType::CUDA, [](Device) { return std::unique_ptr<c10d::Timer>(new HostTimer); });
  auto* gloo = reinterpret_cast<GlooRegistry*>(gloo_registry());
  if (!gloo->Has(DeviceType::CUDA)) gloo->Register(DeviceType::CUDA, &gloo_all_reduce);

  using Free = pybind11::call_guard<pybind11::gil_scoped_release>;
  m.def("device_count", &device_count);
  m.def("current_device", [] { return int{current_device}; });
  m.def("set_device", [](int index) { set_device(static_cast<DeviceIndex>(index)); });
  m.def("has_context", [] {
    void* context = nullptr;
    STUB(current_context, &context);
    return context != nullptr;
  });
  m.def("set_lazy_contexts", [](bool lazy) { lazy_contexts = lazy; });
  m.def("peek", [](const at::Tensor& tensor) { return on_host(tensor).clone(); });
  m.def("set_delay_us", [](int us) { stub().set_delay_us(us); });

  // Keeps the current stream busy, as torch.cuda._sleep() does; a cycle takes half a nanosecond.
  m.def("sleep", [](int64_t cycles) {
    enqueue(current_stream(current_device),
            [cycles] { std::this_thread::sleep_for(std::chrono::nanoseconds(cycles / 2)); });
  });
  m.def("synchronize", &synchronize_all, Free());
  // True where every stream came to rest; for the end of the process, where one may hang.
  m.def(
      "settle",
      [](int milliseconds) {
        const auto idle = [] {
          std::lock_guard<std::mutex> lock(streams().mutex);
          return std::all_of(streams().handles.begin(), streams().handles.end(),
                             [](void* handle) { return stub().query_stream(handle) == 0; });
        };
        for (; milliseconds > 0 && !idle(); --milliseconds) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return idle();
      },
      Free());

  m.def("records", [](c10::StreamId id) { return allocator().records(id); });
  m.def("blocks", [](bool used) { return allocator().blocks(used); });
  m.def("empty_cache", [] { allocator().empty_cache(); }, Free());

  pybind11::class_<Gate, std::shared_ptr<Gate>>(m, "Gate")
      .def(pybind11::init<>())
      .def("hold",
           [](const std::shared_ptr<Gate>& gate) {
             enqueue(current_stream(current_device), [gate] { gate->pass(); });
           })
      .def("await_reached", &Gate::await, Free())
      .def("release", &Gate::release);

  // torch's own future of values on a device, as Work::getFuture() gives it.
  pybind11::class_<Future>(m, "Future")
      .def(pybind11::init([] {
        return Future{c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()),
            std::vector<Device>{{DeviceType::CUDA, current_device}})};
      }))
      .def(
          "mark_completed",
          [](const Future& self, std::vector<at::Tensor> tensors) {
            self.future->markCompleted(c10::IValue(std::move(tensors)));
          },
          Free())
      .def("wait", [](const Future& self) { self.future->wait(); }, Free());
}
