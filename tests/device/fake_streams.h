// The fake device's streams: those of the stub driver (stub_driver.cc), and what is current in a
// thread.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace fake_cuda {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

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
inline const Stub& stub() {
  static const auto* one = new Stub;
  return *one;
}

constexpr int kNotReady = 600;
#define STUB(call, ...)                                                 \
  do {                                                                  \
    const int result_ = stub().call(__VA_ARGS__);                       \
    TORCH_CHECK(result_ == 0, "stub driver: " #call " gave ", result_); \
  } while (false)

inline int device_count() {
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
inline std::atomic<bool> lazy_contexts{false};

inline thread_local DeviceIndex current_device = 0;
inline thread_local std::map<DeviceIndex, c10::StreamId> current_streams;

// As the runtime does in every call that needs a context.
inline void attach() {
  void *now = nullptr, *wanted = nullptr;
  STUB(current_context, &now);
  STUB(retain_primary_context, &wanted, current_device);
  if (now != wanted) STUB(set_current_context, wanted);
}

inline void set_device(DeviceIndex index) {
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
inline Streams& streams() {
  static auto* one = new Streams;
  return *one;
}

inline void* handle_of(const Stream& stream) {
  std::lock_guard<std::mutex> lock(streams().mutex);
  TORCH_CHECK(stream.device_type() == DeviceType::CUDA &&
                  static_cast<size_t>(stream.id()) < streams().handles.size(),
              "not a stream of the fake device: ", stream);
  return streams().handles[stream.id()];
}

constexpr size_t kPool = 32;  // as torch's
inline Stream pooled_stream(Device device) {
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

inline Stream current_stream(DeviceIndex index) {
  const auto found = current_streams.find(index);
  return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index),
                found == current_streams.end() ? 0 : found->second);
}

inline void synchronize(const Stream& stream) {
  attach();
  STUB(synchronize_stream, handle_of(stream));
}

inline void synchronize_all() {
  attach();
  std::vector<void*> handles;
  {
    std::lock_guard<std::mutex> lock(streams().mutex);
    handles = streams().handles;
  }
  for (void* handle : handles) STUB(synchronize_stream, handle);
}

inline void enqueue(const Stream& stream, std::function<void()> task) {
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

}  // namespace fake_cuda
