// A driver of a GPU that is not there: libcuda.so.1 for tests of the host's side.
//
//   g++ -std=c++20 -O1 -g -fPIC -shared -ffp-contract=off -Icsrc tests/device/stub_driver.cc
//       -o libcuda.so.1
//
// Streams run what is put on them in order, each on a thread of its own and after a while, as a
// device does: what is not ordered by events goes wrong. "Device memory" is shared memory, so other
// processes can open it (IPC). Kernels are the stages of csrc/codec/gpu, run by a loop. Every call
// is written to the file named by STUB_DRIVER_LOG: its name, then its arguments; handles by number.
// STUB_DRIVER_FAIL=NAME makes that call fail with 719. STUB_DRIVER_DELAY_US: before each task;
// stub_set_delay_us() changes it for the tasks to come. The legacy stream waits for no other one.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "host_kernels.h"

namespace {

using cgx::gpu::DecodeCall;
using cgx::gpu::EncodeCall;
using cgx::gpu::FiniteCall;
using cgx::gpu::SumCall;

constexpr int kSuccess = 0, kInvalid = 1, kNotReady = 600, kLaunchFailed = 719;

std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// True where the call is to fail.
template <typename... Args>
bool called(const char* name, const Args&... args) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  static FILE* log = setting("STUB_DRIVER_LOG").empty()
                         ? nullptr
                         : std::fopen(setting("STUB_DRIVER_LOG").c_str(), "a");
  if (log != nullptr) {
    std::fprintf(log, "%s", name);
    (std::fprintf(log, " %lld", static_cast<long long>(args)), ...);
    std::fprintf(log, "\n");
    std::fflush(log);
  }
  return setting("STUB_DRIVER_FAIL") == name;
}

template <typename Call>
std::function<void()> job(const void* argument, uint64_t (*count)(const Call&),
                          cgx::device::Stage<Call, cgx::gpu::KernelFamilies> stage) {
  const Call call = *static_cast<const Call*>(argument);
  return [call, count, stage] { cgx::device::launch(call, count(call), stage); };
}

template <typename Call>
uint64_t tiles(const Call& call) {
  return call.table.tiles;
}
template <typename Call>
uint64_t long_buckets(const Call& call) {
  return call.table.long_buckets;
}

struct Kernel {
  const char* name;
  std::function<void()> (*bind)(const void* argument);
};
const Kernel kKernels[] = {
    {"cgx_encode", [](const void* a) { return job<EncodeCall>(a, tiles, cgx::gpu::encode_stage); }},
    {"cgx_decode", [](const void* a) { return job<DecodeCall>(a, tiles, cgx::gpu::decode_stage); }},
    {"cgx_sum", [](const void* a) { return job<SumCall>(a, tiles, cgx::gpu::sum_stage); }},
    {"cgx_long_encode",
     [](const void* a) { return job<EncodeCall>(a, long_buckets, cgx::gpu::long_encode_stage); }},
    {"cgx_long_sum",
     [](const void* a) { return job<SumCall>(a, long_buckets, cgx::gpu::long_sum_stage); }},
    {"cgx_encode_feedback",
     [](const void* a) { return job<EncodeCall>(a, tiles, cgx::gpu::encode_feedback_stage); }},
    {"cgx_sum_feedback",
     [](const void* a) { return job<SumCall>(a, tiles, cgx::gpu::sum_feedback_stage); }},
    {"cgx_long_encode_feedback",
     [](const void* a) {
       return job<EncodeCall>(a, long_buckets, cgx::gpu::long_encode_feedback_stage);
     }},
    {"cgx_long_sum_feedback",
     [](const void* a) {
       return job<SumCall>(a, long_buckets, cgx::gpu::long_sum_feedback_stage);
     }},
    {"cgx_finite", [](const void* a) { return job<FiniteCall>(a, tiles, cgx::gpu::finite_stage); }},
};

// Counts in shared memory, so that other processes can wait for them.
struct EventState {
  std::atomic<uint64_t> asked, done;
};

// Memory that other processes open through this one's /proc entry: device memory, or the state of
// an event. It has no name of its own, so nothing is left behind by a process that is killed.
struct SharedFile {
  char name[40] = "";  // what the owner opens to others
  int fd = -1;         // the owner's
  void* data = nullptr;
  size_t bytes = 0;

  static SharedFile make(size_t bytes) {
    SharedFile file;
    file.fd = memfd_create("cgx-stub", MFD_CLOEXEC);
    if (file.fd < 0 || ftruncate(file.fd, static_cast<off_t>(bytes)) != 0) return {};
    std::snprintf(file.name, sizeof file.name, "/proc/%d/fd/%d", getpid(), file.fd);
    file.map(file.fd, bytes);
    return file;
  }
  static SharedFile open(const char* name) {
    SharedFile file;
    const int fd = ::open(name, O_RDWR | O_CLOEXEC);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) != 0) return {};
    file.map(fd, static_cast<size_t>(facts.st_size));
    ::close(fd);
    return file;
  }
  void map(int fd, size_t size) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) data = nullptr;
    bytes = size;
  }
  void release(bool own) {
    munmap(data, bytes);
    if (own) ::close(fd);
  }
};

struct Event {
  SharedFile file;
  bool own;
  int number;
  EventState* state() const { return static_cast<EventState*>(file.data); }
  // Work that was put on a stream before the handle went may still use it: it is never unmapped.
  void release() const {
    if (own) ::close(file.fd);
  }
};

std::atomic<int>& delay_us() {
  static std::atomic<int> pause{
      setting("STUB_DRIVER_DELAY_US").empty() ? 200 : std::stoi(setting("STUB_DRIVER_DELAY_US"))};
  return pause;
}

class Stream {
 public:
  explicit Stream(int number) : number(number), thread_([this] { run(); }) {}
  ~Stream() {
    push(nullptr);
    thread_.join();
  }
  void push(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    ++asked_;
    wake_.notify_one();
  }
  bool idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_ == asked_;
  }
  // For what was pushed until now.
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t number = asked_;
    ended_.wait(lock, [&] { return done_ >= number; });
  }
  const int number;

 private:
  void run() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      if (!task) return;
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us()));
      task();
      std::lock_guard<std::mutex> lock(mutex_);
      ++done_;
      ended_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<std::function<void()>> tasks_;
  uint64_t asked_ = 0, done_ = 0;
  std::thread thread_;
};

struct Device {
  std::mutex mutex;
  std::map<void*, SharedFile> memory;  // own and opened ones, by address
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  Stream* legacy = nullptr;
  int handles = 0;

  Stream* stream(void* handle) {
    if (handle != nullptr) return static_cast<Stream*>(handle);
    std::lock_guard<std::mutex> lock(mutex);
    if (legacy == nullptr) legacy = new Stream(0);
    return legacy;
  }
};
Device& device() {
  static auto* one = new Device;
  return *one;
}

thread_local std::deque<void*> contexts;
char primary[16];  // a device's primary context is the address of its element
long long number_of(const void* handle) { return reinterpret_cast<long long>(handle); }

int copy(const char* name, void* to, const void* from, size_t bytes, void* stream) {
  Stream* on = device().stream(stream);
  if (called(name, bytes, on->number)) return kLaunchFailed;
  on->push([=] { std::memcpy(to, from, bytes); });
  return kSuccess;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return called("cuInit") ? 100 : kSuccess; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuDeviceGetCount(int* count) {
  const std::string wanted = setting("STUB_DRIVER_DEVICES");
  *count = wanted.empty() ? 1 : std::stoi(wanted);
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int, int) {
  *value = 4;  // multiprocessors
  return kSuccess;
}
int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return kSuccess;
}
int cuCtxGetCurrent(void** context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return kSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  if (called("cuCtxPushCurrent", number_of(context))) return kInvalid;
  contexts.push_back(context);
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  called("cuCtxPopCurrent");
  if (contexts.empty()) return 201;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}
int cuCtxSetCurrent(void* context) {
  if (!contexts.empty()) contexts.pop_back();
  if (context != nullptr) contexts.push_back(context);
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int number) {
  int count = 0;
  cuDeviceGetCount(&count);
  if (number < 0 || number >= count || count > static_cast<int>(sizeof primary)) return 101;
  *context = primary + number;
  return kSuccess;
}
int cuCtxGetDevice(int* number) {
  if (contexts.empty()) return 201;
  auto* context = static_cast<char*>(contexts.back());
  const bool known = context >= primary && context < primary + sizeof primary;
  *number = known ? static_cast<int>(context - primary) : 0;
  return kSuccess;
}
int cuModuleLoadData(void** module, const void*) {
  if (called("cuModuleLoadData")) return 218;
  *module = contexts.empty() ? nullptr : &contexts;
  return contexts.empty() ? 201 : kSuccess;
}
int cuModuleUnload(void*) { return called("cuModuleUnload") ? kInvalid : kSuccess; }
int cuModuleGetFunction(void** function, void*, const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) != 0) continue;
    *function = const_cast<Kernel*>(&kernel);
    return kSuccess;
  }
  return 500;
}
int cuLaunchKernel(void* function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned shared, void* stream, void** arguments, void**) {
  const auto* kernel = static_cast<const Kernel*>(function);
  Stream* on = device().stream(stream);
  if (called("cuLaunchKernel", grid, threads, shared, on->number)) return kLaunchFailed;
  if (called(kernel->name, on->number)) return kLaunchFailed;
  on->push(kernel->bind(arguments[0]));
  return kSuccess;
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  return copy("cuMemcpyAsync", reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes,
              stream);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync", reinterpret_cast<void*>(to), from, bytes, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync", to, reinterpret_cast<void*>(from), bytes, stream);
}
int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
  if (called("cuMemAlloc", bytes)) return 2;
  if (bytes == 0) return kInvalid;
  const SharedFile file = SharedFile::make(bytes);
  if (file.data == nullptr) return 2;
  std::lock_guard<std::mutex> lock(device().mutex);
  device().memory[file.data] = file;
  *memory = reinterpret_cast<uint64_t>(file.data);
  return kSuccess;
}
static int forget(uint64_t memory, bool own) {
  std::lock_guard<std::mutex> lock(device().mutex);
  auto found = device().memory.find(reinterpret_cast<void*>(memory));
  if (found == device().memory.end()) return kInvalid;
  found->second.release(own);
  device().memory.erase(found);
  return kSuccess;
}
int cuMemFree_v2(uint64_t memory) { return called("cuMemFree") ? kInvalid : forget(memory, true); }
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  if (called("cuMemHostAlloc", bytes)) return 2;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return kSuccess;
}
int cuMemFreeHost(void* memory) {
  called("cuMemFreeHost");
  std::free(memory);
  return kSuccess;
}
int cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
  std::lock_guard<std::mutex> lock(device().mutex);
  auto made = std::make_unique<Stream>(++device().handles);
  if (called("cuStreamCreate", flags, made->number)) return kInvalid;
  *stream = made.get();
  device().streams[made.get()] = std::move(made);
  return kSuccess;
}
int cuStreamDestroy_v2(void* stream) {
  std::unique_ptr<Stream> gone;
  std::lock_guard<std::mutex> lock(device().mutex);
  auto found = device().streams.find(static_cast<Stream*>(stream));
  if (found == device().streams.end()) return kInvalid;
  gone = std::move(found->second);
  device().streams.erase(found);
  called("cuStreamDestroy", gone->number);
  return kSuccess;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  Stream* on = device().stream(stream);
  const auto* waited = static_cast<const Event*>(event);
  if (called("cuStreamWaitEvent", on->number, waited->number)) return kInvalid;
  EventState* state = waited->state();
  const uint64_t number = state->asked;
  on->push([=] {
    while (state->done < number) std::this_thread::sleep_for(std::chrono::microseconds(50));
  });
  return kSuccess;
}
int cuStreamQuery(void* stream) { return device().stream(stream)->idle() ? kSuccess : kNotReady; }
int cuStreamSynchronize(void* stream) {
  device().stream(stream)->wait();
  return kSuccess;
}
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  Stream* on = device().stream(stream);
  if (called("cuLaunchHostFunc", on->number)) return kLaunchFailed;
  on->push([=] { function(argument); });
  return kSuccess;
}
void stub_set_delay_us(int us) { delay_us() = us; }
int cuStreamIsCapturing(void*, int* status) {
  *status = setting("STUB_DRIVER_CAPTURING").empty() ? 0 : 1;
  return kSuccess;
}
int cuEventCreate(void** event, unsigned flags) {
  const SharedFile file = SharedFile::make(sizeof(EventState));
  if (file.data == nullptr) return 2;
  std::lock_guard<std::mutex> lock(device().mutex);
  auto* made = new Event{file, true, ++device().handles};
  if (called("cuEventCreate", flags, made->number)) return kInvalid;
  *event = made;
  return kSuccess;
}
int cuEventDestroy_v2(void* event) {
  auto* gone = static_cast<Event*>(event);
  called("cuEventDestroy", gone->number);
  gone->release();
  delete gone;
  return kSuccess;
}
int cuEventRecord(void* event, void* stream) {
  Stream* on = device().stream(stream);
  const auto* recorded = static_cast<const Event*>(event);
  if (called("cuEventRecord", recorded->number, on->number)) return kInvalid;
  EventState* state = recorded->state();
  const uint64_t number = ++state->asked;
  on->push([=] { state->done = number; });
  return kSuccess;
}
int cuEventSynchronize(void* event) {
  const EventState* state = static_cast<const Event*>(event)->state();
  const uint64_t number = state->asked;
  while (state->done < number) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return kSuccess;
}
int cuEventQuery(void* event) {
  const EventState* state = static_cast<const Event*>(event)->state();
  return state->done >= state->asked ? kSuccess : kNotReady;
}
int cuIpcGetMemHandle(char* handle, uint64_t memory) {
  std::lock_guard<std::mutex> lock(device().mutex);
  auto found = device().memory.find(reinterpret_cast<void*>(memory));
  if (called("cuIpcGetMemHandle") || found == device().memory.end()) return kInvalid;
  std::memcpy(handle, found->second.name, sizeof found->second.name);
  return kSuccess;
}
struct Handle {
  char bytes[64];
};
int cuIpcOpenMemHandle_v2(uint64_t* memory, Handle handle, unsigned flags) {
  if (called("cuIpcOpenMemHandle", flags)) return kInvalid;
  const SharedFile file = SharedFile::open(handle.bytes);
  if (file.data == nullptr) return kInvalid;
  std::lock_guard<std::mutex> lock(device().mutex);
  device().memory[file.data] = file;
  *memory = reinterpret_cast<uint64_t>(file.data);
  return kSuccess;
}
int cuIpcCloseMemHandle(uint64_t memory) {
  called("cuIpcCloseMemHandle");
  return forget(memory, false);
}
int cuIpcGetEventHandle(char* handle, void* event) {
  const auto* mine = static_cast<const Event*>(event);
  if (called("cuIpcGetEventHandle", mine->number)) return kInvalid;
  std::memcpy(handle, mine->file.name, sizeof mine->file.name);
  return kSuccess;
}
int cuIpcOpenEventHandle(void** event, Handle handle) {
  const SharedFile file = SharedFile::open(handle.bytes);
  if (file.data == nullptr) return kInvalid;
  std::lock_guard<std::mutex> lock(device().mutex);
  auto* made = new Event{file, false, ++device().handles};
  called("cuIpcOpenEventHandle", made->number);
  *event = made;
  return kSuccess;
}
int cuGetErrorName(int error, const char** text) {
  *text = error == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_STUB";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "the stub was told to fail";
  return kSuccess;
}

}  // extern "C"
