// A CUDA device for a torch that was built without CUDA, on the stub driver: for tests of what a
// process does with tensors of "cuda:0". tests/device/fake_cuda.py compiles and loads it.
//
// Streams, events and memory are the stub's (stub_driver.cc). Copies, fills and in-place arithmetic
// run on the current stream, on pointers taken at the call, as kernels do: they see what is there
// when their turn comes. Everything else waits for the current stream and runs on the CPU. The
// allocator hands a block out again as torch's does: at once to the stream that it was made on, and
// after the streams that it was recorded on (record_stream). New memory holds NaN.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <tuple>
#include <unordered_map>
#include <vector>

// c10d::GlooAllreduceRegistry().
extern "C" void* gloo_registry() __asm__("_ZN4c10d21GlooAllreduceRegistryEv");

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

// ---- the stub's functions ----

struct Stub {
  int (*device_count)(int*);
  int (*current_context)(void**);
  int (*set_current_context)(void*);
  int (*retain_primary_context)(void**, int);
  int (*allocate)(uint64_t*, size_t);
  int (*free_memory)(uint64_t);
  int (*create_stream)(void**, unsigned, int);
  int (*query_stream)(void*);
  int (*synchronize_stream)(void*);
  int (*stream_wait_event)(void*, void*, unsigned);
  int (*launch_host)(void*, void (*)(void*), void*);
  int (*is_capturing)(void*, int*);
  int (*create_event)(void**, unsigned);
  int (*destroy_event)(void*);
  int (*record_event)(void*, void*);
  int (*query_event)(void*);
  int (*synchronize_event)(void*);
  void (*set_delay_us)(int);  // only the stub has it

  Stub() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    TORCH_CHECK(library != nullptr, "the fake CUDA device needs the stub driver: ", dlerror());
    find(library, "stub_set_delay_us", set_delay_us);
    find(library, "cuDeviceGetCount", device_count);
    find(library, "cuCtxGetCurrent", current_context);
    find(library, "cuCtxSetCurrent", set_current_context);
    find(library, "cuDevicePrimaryCtxRetain", retain_primary_context);
    find(library, "cuMemAlloc_v2", allocate);
    find(library, "cuMemFree_v2", free_memory);
    find(library, "cuStreamCreateWithPriority", create_stream);
    find(library, "cuStreamQuery", query_stream);
    find(library, "cuStreamSynchronize", synchronize_stream);
    find(library, "cuStreamWaitEvent", stream_wait_event);
    find(library, "cuLaunchHostFunc", launch_host);
    find(library, "cuStreamIsCapturing", is_capturing);
    find(library, "cuEventCreate", create_event);
    find(library, "cuEventDestroy_v2", destroy_event);
    find(library, "cuEventRecord", record_event);
    find(library, "cuEventQuery", query_event);
    find(library, "cuEventSynchronize", synchronize_event);
  }
  template <typename F>
  static void find(void* library, const char* symbol, F& function) {
    function = reinterpret_cast<F>(dlsym(library, symbol));
    TORCH_CHECK(function != nullptr, "libcuda.so.1 has no ", symbol, ": it is not the stub driver");
  }
};
const Stub& stub() {
  static const auto* one = new Stub;
  return *one;
}

constexpr int kNotReady = 600;
#define STUB(call, ...)                                                 \
  do {                                                                  \
    const int result_ = stub().call(__VA_ARGS__);                       \
    TORCH_CHECK(result_ == 0, "stub driver: " #call " gave ", result_); \
  } while (false)

int device_count() {
  static const int count = [] {
    int found = 0;
    STUB(device_count, &found);
    return found;
  }();
  return count;
}

// ---- device and stream of a thread ----

// torch's CUDA leaves a thread that asks for the device that it is already on (0, at first) without
// a context until the runtime is first called; by default here every set or exchange makes it.
std::atomic<bool> lazy_contexts{false};

thread_local DeviceIndex current_device = 0;
thread_local std::map<DeviceIndex, c10::StreamId> current_streams;

// As the runtime does in every call that needs a context.
void attach() {
  void *now = nullptr, *wanted = nullptr;
  STUB(current_context, &now);
  STUB(retain_primary_context, &wanted, current_device);
  if (now != wanted) STUB(set_current_context, wanted);
}

void set_device(DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "no device cuda:", int{index});
  const bool same = index == current_device;
  current_device = index;
  if (!same || !lazy_contexts) attach();
}

// Identifiers of streams are positions here; 0 is the legacy stream. None is ever destroyed.
struct Streams {
  std::mutex mutex;
  std::vector<void*> handles{nullptr};
  std::map<DeviceIndex, std::vector<c10::StreamId>> pools;
  std::map<DeviceIndex, size_t> next;
};
Streams& streams() {
  static auto* one = new Streams;
  return *one;
}

void* handle_of(const Stream& stream) {
  std::lock_guard<std::mutex> lock(streams().mutex);
  TORCH_CHECK(stream.device_type() == DeviceType::CUDA &&
                  static_cast<size_t>(stream.id()) < streams().handles.size(),
              "not a stream of the fake device: ", stream);
  return streams().handles[stream.id()];
}

constexpr size_t kPool = 32;  // as torch's
Stream pooled_stream(Device device) {
  attach();
  const DeviceIndex index = device.index() < 0 ? current_device : device.index();
  std::lock_guard<std::mutex> lock(streams().mutex);
  std::vector<c10::StreamId>& pool = streams().pools[index];
  const size_t turn = streams().next[index]++ % kPool;
  if (turn >= pool.size()) {
    void* handle = nullptr;
    STUB(create_stream, &handle, 1, 0);
    pool.push_back(static_cast<c10::StreamId>(streams().handles.size()));
    streams().handles.push_back(handle);
  }
  return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index), pool[turn]);
}

Stream current_stream(DeviceIndex index) {
  const auto found = current_streams.find(index);
  return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index),
                found == current_streams.end() ? 0 : found->second);
}

void synchronize(const Stream& stream) {
  attach();
  STUB(synchronize_stream, handle_of(stream));
}

void synchronize_all() {
  attach();
  std::vector<void*> handles;
  {
    std::lock_guard<std::mutex> lock(streams().mutex);
    handles = streams().handles;
  }
  for (void* handle : handles) STUB(synchronize_stream, handle);
}

void enqueue(const Stream& stream, std::function<void()> task) {
  attach();
  auto held = std::make_unique<std::function<void()>>(std::move(task));
  const auto run = [](void* argument) {
    std::unique_ptr<std::function<void()>> task(static_cast<std::function<void()>*>(argument));
    try {
      const at::AutoDispatchBelowADInplaceOrView plain;
      (*task)();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "fake CUDA device, on a stream: %s\n", error.what());
      std::abort();
    }
  };
  STUB(launch_host, handle_of(stream), run, held.get());
  held.release();
}

// ---- memory ----

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const Device device(DeviceType::CUDA, current_device);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    const Stream stream = current_stream(current_device);
    const size_t rounded = (bytes + 511) / 512 * 512;
    attach();
    std::lock_guard<std::mutex> lock(mutex_);
    take_back();
    std::vector<Block>& free = free_[{stream.id(), stream.device_index(), rounded}];
    Block block{0, rounded, stream, {}};
    if (free.empty()) {
      STUB(allocate, &block.address, rounded);
      std::memset(reinterpret_cast<void*>(block.address), 0xff, rounded);
    } else {
      block = free.back();
      free.pop_back();
    }
    void* address = reinterpret_cast<void*>(block.address);
    used_.emplace(address, block);
    return {address, address, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    enqueue(current_stream(current_device), [=] { std::memcpy(to, from, bytes); });
  }

  void record(const c10::DataPtr& data, const Stream& stream) {
    if (data.get() == nullptr || data.get_deleter() != &release) return;
    std::lock_guard<std::mutex> lock(mutex_);
    ++records_[stream.id()];
    Block& block = used_.at(data.get());
    if (stream != block.stream) block.recorded.insert(stream.id());
  }
  int64_t records(c10::StreamId stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    return records_[stream];
  }
  int64_t blocks(bool used) {
    std::lock_guard<std::mutex> lock(mutex_);
    take_back();
    size_t count = waiting_.size();
    for (const auto& [key, blocks] : free_) count += blocks.size();
    return static_cast<int64_t>(used ? used_.size() : count);
  }
  void empty_cache() {
    synchronize_all();
    std::lock_guard<std::mutex> lock(mutex_);
    take_back();
    for (const auto& [key, blocks] : free_) {
      for (const Block& block : blocks) STUB(free_memory, block.address);
    }
    free_.clear();
  }

 private:
  struct Block {
    uint64_t address;
    size_t bytes;
    Stream stream;
    std::set<c10::StreamId> recorded;
  };
  struct Waiting {
    Block block;
    std::vector<void*> events;
  };
  static void release(void* address);

  void give_back(void* address) {
    attach();
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = used_.find(address);
    if (found == used_.end()) return;
    Waiting waiting{found->second, {}};
    used_.erase(found);
    for (const c10::StreamId id : waiting.block.recorded) {
      void* event = nullptr;
      STUB(create_event, &event, 2);
      STUB(record_event, event,
           handle_of(Stream(Stream::UNSAFE, waiting.block.stream.device(), id)));
      waiting.events.push_back(event);
    }
    waiting.block.recorded.clear();
    waiting_.push_back(std::move(waiting));
    take_back();
  }
  // What no recorded stream has work for any more.
  void take_back() {
    std::erase_if(waiting_, [&](const Waiting& waiting) {
      for (void* event : waiting.events) {
        if (stub().query_event(event) == kNotReady) return false;
      }
      for (void* event : waiting.events) STUB(destroy_event, event);
      const Block& block = waiting.block;
      free_[{block.stream.id(), block.stream.device_index(), block.bytes}].push_back(block);
      return true;
    });
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  std::vector<Waiting> waiting_;
  std::map<std::tuple<c10::StreamId, DeviceIndex, size_t>, std::vector<Block>> free_;
  std::map<c10::StreamId, int64_t> records_;
};
CachingAllocator& allocator() {
  static auto* one = new CachingAllocator;
  return *one;
}
void CachingAllocator::release(void* address) {
  if (address != nullptr) allocator().give_back(address);
}

// Host memory that a copy may read or write when its turn on the stream comes.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::lock_guard<std::mutex> lock(mutex_);
    if (memory != nullptr) sizes_[memory] = bytes;
    return {memory, memory, &release, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool owns(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = sizes_.upper_bound(const_cast<void*>(address));
    if (next == sizes_.begin()) return false;
    --next;
    return static_cast<const char*>(address) < static_cast<char*>(next->first) + next->second;
  }

 private:
  static void release(void* memory);

  std::mutex mutex_;
  std::map<void*, size_t> sizes_;
};
PinnedAllocator& pinned() {
  static auto* one = new PinnedAllocator;
  return *one;
}
void PinnedAllocator::release(void* memory) {
  std::lock_guard<std::mutex> lock(pinned().mutex_);
  pinned().sizes_.erase(memory);
  std::free(memory);
}

// ---- what c10's generic guards, streams and events call ----

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    set_device(device.index());
    return before;
  }
  Device getDevice() const override { return {DeviceType::CUDA, current_device}; }
  void setDevice(Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    try {
      set_device(device.index());
    } catch (const c10::Error&) {
      // As its name says.
    }
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(device_count());
  }

  Stream getStream(Device device) const override { return current_stream(device.index()); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return pooled_stream(device);
  }
  Stream getNewStream(Device device, int) const override { return pooled_stream(device); }
  Stream exchangeStream(Stream stream) const override {
    handle_of(stream);
    const Stream before = current_stream(stream.device_index());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override { return handle_of(stream); }
  bool queryStream(const Stream& stream) const override {
    return stub().query_stream(handle_of(stream)) != kNotReady;
  }
  void synchronizeStream(const Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const DeviceIndex) const override { synchronize_all(); }
  bool isStreamCapturing(const Stream& stream) const override {
    int status = 0;
    STUB(is_capturing, handle_of(stream), &status);
    return status != 0;
  }

  void record(void** event, const Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    attach();
    if (*event == nullptr) STUB(create_event, event, 2);
    STUB(record_event, *event, handle_of(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) return;
    attach();
    STUB(stream_wait_event, handle_of(stream), event, 0);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || stub().query_event(event) != kNotReady;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) STUB(synchronize_event, event);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    if (event != nullptr) stub().destroy_event(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    allocator().record(data, stream);
  }
};

// Makes CUDA torch's accelerator: autograd asks for it, and so do `with torch.Stream()` and
// torch.accelerator. Found by its name.
struct CUDAHooks final : public at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count()); }
  int getNumGPUs() const override { return device_count(); }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex index) const override { set_device(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = ::current_device;
    set_device(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  void deviceSynchronize(DeviceIndex) const override { synchronize_all(); }
  bool isPinnedPtr(const void* data) const override { return pinned().owns(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
};

// ---- operators ----

// The same memory as a tensor of the CPU. Does not keep it.
at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

Stream stream_of(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

namespace op {

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

// Between device and host: done, for the host, when this returns (torch waits for the device's end
// of it, too). Only copies of pinned memory with non_blocking run when their turn comes; they keep
// that memory.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.is_same(from)) return to;
  const at::Tensor source = from.expand(to.sizes());
  if (to.numel() == 0) return to;
  const at::Tensor& host = to.is_cuda() ? source : to;
  const bool later = non_blocking && !host.is_cuda() && pinned().owns(host.data_ptr());
  const at::Tensor view = source.is_cuda() ? on_host(source) : later ? source : source.clone();
  const Stream stream = stream_of(to.is_cuda() ? to : from);
  enqueue(stream, [to = to.is_cuda() ? on_host(to) : to, view]() mutable { to.copy_(view); });
  if (!to.is_cuda() && !later) synchronize(stream);
  return to;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::Tensor written = to;
  return op::copy(written, from, non_blocking);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!format || *format == at::MemoryFormat::Contiguous, "resize_: contiguous only");
  auto* tensor = self.unsafeGetTensorImpl();
  c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
  const size_t needed = at::detail::computeStorageNbytesContiguous(
      sizes, self.element_size(), static_cast<size_t>(self.storage_offset()));
  if (needed > storage->nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr grown = allocator().allocate(needed);
    allocator().copy_data(grown.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(grown));  // the old block goes back to the same stream
    storage->set_nbytes(needed);
  }
  tensor->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) op::resize(to, from.sizes(), std::nullopt);
  return op::copy_from(from, to, false);
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  enqueue(stream_of(self), [self = on_host(self), value]() mutable { self.fill_(value); });
  return self;
}
at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  return op::fill(self, value.item());
}
at::Tensor& zero(at::Tensor& self) { return op::fill(self, 0); }

// In place, on the stream. What could raise an error (a result of another dtype) runs at the call.
template <typename F>
at::Tensor& in_place(at::Tensor& self, const at::Tensor& other, F&& run) {
  at::Tensor operand = other.is_cuda() ? on_host(other) : other;
  const bool sure = other.is_cuda()
                        ? other.scalar_type() == self.scalar_type() && other.sizes() == self.sizes()
                        : other.dim() == 0 && self.is_floating_point() && !other.is_complex();
  if (!sure) {
    synchronize(stream_of(self));
    at::Tensor view = on_host(self);
    run(view, operand);
    return self;
  }
  if (!other.is_cuda()) operand = other.clone();
  if (self.numel() == 0) return self;
  enqueue(stream_of(self), [self = on_host(self), operand, run]() mutable { run(self, operand); });
  return self;
}
at::Tensor& add(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return in_place(self, other,
                  [alpha](at::Tensor& to, const at::Tensor& from) { to.add_(from, alpha); });
}
at::Tensor& mul(at::Tensor& self, const at::Tensor& other) {
  return in_place(self, other, [](at::Tensor& to, const at::Tensor& from) { to.mul_(from); });
}
at::Tensor& div(at::Tensor& self, const at::Tensor& other) {
  return in_place(self, other, [](at::Tensor& to, const at::Tensor& from) { to.div_(from); });
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator().record(self.storage().data_ptr(), stream);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, sizes, strides);
}
at::Tensor& set_empty(at::Tensor& self) {
  self.set_(op::empty({0}, self.scalar_type(), {}, self.device(), {}, {}));
  return self;
}

}  // namespace op

// It copies to the host, which waits for the current stream, and back.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(op::empty));
  m.impl("empty_strided", TORCH_FN(op::empty_strided));
  m.impl("copy_", TORCH_FN(op::copy));
  m.impl("_copy_from", TORCH_FN(op::copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(op::copy_from_and_resize));
  m.impl("resize_", TORCH_FN(op::resize));
  m.impl("fill_.Scalar", TORCH_FN(op::fill));
  m.impl("fill_.Tensor", TORCH_FN(op::fill_tensor));
  m.impl("zero_", TORCH_FN(op::zero));
  m.impl("add_.Tensor", TORCH_FN(op::add));
  m.impl("mul_.Tensor", TORCH_FN(op::mul));
  m.impl("div_.Tensor", TORCH_FN(op::div));
  m.impl("record_stream", TORCH_FN(op::record_stream));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(op::set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", TORCH_FN(op::set_empty));
}

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
