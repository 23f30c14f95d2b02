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
//
// It refuses what the driver refuses:
//   - a handle of memory or of an event that the same process has made (201). Ranks that are threads
//     of one process are processes to the stub where each says so: stub_set_process(NUMBER), which
//     holds for the calling thread alone and is 0 at first.
//   - an image that is neither a fatbin, a cubin nor PTX (200); under HIP's names, with STUB_HIP,
//     neither a code object nor a bundle of clang.
// Freeing memory, or destroying an event, that a living process has open is undefined in CUDA. The
// stub says so on stderr and in the log ("undefined", with the process), frees nothing and returns
// 719; with STUB_DRIVER_STRICT it aborts, because callers ignore what their destructors are told.
// stub_own_bytes(): of memory that this process has allocated and not freed. stub_opened(): how many
// blocks of others it has open.
// STUB_DRIVER_ALLOC_WAITS: cuMemAlloc waits for all streams, as the driver's may.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "stub_device.h"
#include "stub_image.h"
#include "stub_kernels.h"

namespace {

constexpr int kSuccess = 0, kInvalid = 1, kNotReady = 600, kMisaligned = 716, kLaunchFailed = 719;
constexpr int kInvalidImage = 200, kInvalidContext = 201;

thread_local std::deque<void*> contexts;
char primary[16];  // a device's primary context is the address of its element
long long number_of(const void* handle) { return reinterpret_cast<long long>(handle); }

int copy(const char* name, void* to, const void* from, size_t bytes, void* stream) {
  Stream* on = device().stream(stream);
  if (called(name, bytes, on->number)) return kLaunchFailed;
  on->push([=] { std::memcpy(to, from, bytes); });
  return kSuccess;
}

// Memory that was allocated here (`own`), or opened.
int forget(uint64_t memory, bool own) {
  std::lock_guard<std::mutex> lock(device().mutex);
  auto found = device().memory.find(reinterpret_cast<void*>(memory));
  if (found == device().memory.end() || found->second.own() != own) return kInvalid;
  if (undefined("cuMemFree", found->second)) return kLaunchFailed;
  found->second.release();
  device().memory.erase(found);
  return kSuccess;
}

void wait_for_all() {
  std::vector<Stream*> streams;
  {
    std::lock_guard<std::mutex> lock(device().mutex);
    for (const auto& [handle, stream] : device().streams) streams.push_back(handle);
  }
  for (Stream* stream : streams) stream->wait();  // what runs there may call the driver
}

// Opens what another process has made. kSuccess, or why not.
int open_shared(const char* name, SharedFile& file) {
  file = SharedFile::open(name);
  if (file.data == nullptr) return kInvalid;
  const bool same_process = file.header()->owner == this_process();
  if (!same_process && file.sign()) return kSuccess;
  file.release();
  return same_process ? kInvalidContext : kInvalid;
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
int cuModuleLoadData(void** module, const void* image) {
  if (called("cuModuleLoadData")) return 218;
  if (!is_image(image)) return kInvalidImage;
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
  std::function<void()> work = kernel->bind(arguments[0]);
  if (work == nullptr) return kMisaligned;
  on->push(std::move(work));
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
  if (!setting("STUB_DRIVER_ALLOC_WAITS").empty()) wait_for_all();
  const SharedFile file = SharedFile::make(bytes);
  if (file.data == nullptr) return 2;
  std::lock_guard<std::mutex> lock(device().mutex);
  device().memory[file.data] = file;
  *memory = reinterpret_cast<uint64_t>(file.data);
  return kSuccess;
}
int cuMemFree_v2(uint64_t memory) {
  if (called("cuMemFree")) return kInvalid;
  return forget(memory, true);
}
long long stub_own_bytes() {
  std::lock_guard<std::mutex> lock(device().mutex);
  long long bytes = 0;
  for (const auto& [address, file] : device().memory) bytes += file.own() ? file.bytes : 0;
  return bytes;
}
int stub_opened() {
  std::lock_guard<std::mutex> lock(device().mutex);
  int count = 0;
  for (const auto& [address, file] : device().memory) count += file.own() ? 0 : 1;
  return count;
}
void stub_set_process(int number) { process_number = number; }
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
  auto* made = new Event{file, ++device().handles};
  if (called("cuEventCreate", flags, made->number)) return kInvalid;
  *event = made;
  return kSuccess;
}
int cuEventDestroy_v2(void* event) {
  auto* gone = static_cast<Event*>(event);
  called("cuEventDestroy", gone->number);
  if (undefined("cuEventDestroy", gone->file)) return kLaunchFailed;
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
  SharedFile file;
  if (const int error = open_shared(handle.bytes, file)) return error;
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
  SharedFile file;
  if (const int error = open_shared(handle.bytes, file)) return error;
  std::lock_guard<std::mutex> lock(device().mutex);
  auto* made = new Event{file, ++device().handles};
  called("cuIpcOpenEventHandle", made->number);
  *event = made;
  return kSuccess;
}
int cuGetErrorName(int error, const char** text) {
  *text = error == kLaunchFailed     ? "CUDA_ERROR_LAUNCH_FAILED"
          : error == kMisaligned     ? "CUDA_ERROR_MISALIGNED_ADDRESS"
          : error == kInvalidImage   ? "CUDA_ERROR_INVALID_IMAGE"
          : error == kInvalidContext ? "CUDA_ERROR_INVALID_CONTEXT"
                                     : "CUDA_ERROR_STUB";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "the stub refuses this call";
  return kSuccess;
}

}  // extern "C"
