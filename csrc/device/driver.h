// The driver API of the GPU, opened at run time: libcuda, or libamdhip64 under other names. The
// extension links against neither.
//
// GPU(driver, launch_kernel, ...) checks the result of a call: ResourceError names the driver's
// function, the code and the driver's own text. Functions work on the context that is current on
// the calling thread; none of them selects a device or a context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/parameter.h"

namespace cgx::device {

// Handles of the driver.
using Context = struct ContextHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Pointer = uint64_t;  // CUdeviceptr; hipDeviceptr_t has the same 64 bits
struct IpcMemory {
  char bytes[64];
};
struct IpcEvent {
  char bytes[64];
};

/// Functions of the driver that are used: name here, in libcuda, in libamdhip64, arguments.
// clang-format off
#define CGX_DRIVER_CALLS(X)                                                                        \
  X(init, "cuInit", "hipInit", (unsigned flags))                                                   \
  X(driver_version, "cuDriverGetVersion", "hipDriverGetVersion", (int* version))                   \
  X(device_count, "cuDeviceGetCount", "hipGetDeviceCount", (int* count))                           \
  X(device_attribute, "cuDeviceGetAttribute", "hipDeviceGetAttribute",                             \
    (int* value, int attribute, int device))                                                       \
  X(can_access_peer, "cuDeviceCanAccessPeer", "hipDeviceCanAccessPeer",                            \
    (int* can, int device, int peer))                                                              \
  X(current_context, "cuCtxGetCurrent", "hipCtxGetCurrent", (Context* context))                    \
  X(push_context, "cuCtxPushCurrent_v2", "hipCtxPushCurrent", (Context context))                   \
  X(pop_context, "cuCtxPopCurrent_v2", "hipCtxPopCurrent", (Context* context))                     \
  X(context_device, "cuCtxGetDevice", "hipCtxGetDevice", (int* device))                            \
  X(load_module, "cuModuleLoadData", "hipModuleLoadData", (Module* module, const void* image))     \
  X(unload_module, "cuModuleUnload", "hipModuleUnload", (Module module))                           \
  X(get_function, "cuModuleGetFunction", "hipModuleGetFunction",                                   \
    (Function* function, Module module, const char* name))                                         \
  X(launch_kernel, "cuLaunchKernel", "hipModuleLaunchKernel",                                      \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments,   \
     void** extra))                                                                                \
  X(copy_async, "cuMemcpyAsync", "hipMemcpyDtoDAsync",                                             \
    (Pointer to, Pointer from, size_t bytes, Stream stream))                                       \
  X(copy_to_device_async, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync",                            \
    (Pointer to, const void* from, size_t bytes, Stream stream))                                   \
  X(copy_to_host_async, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync",                              \
    (void* to, Pointer from, size_t bytes, Stream stream))                                         \
  X(allocate, "cuMemAlloc_v2", "hipMalloc", (Pointer* memory, size_t bytes))                       \
  X(free_memory, "cuMemFree_v2", "hipFree", (Pointer memory))                                      \
  X(allocate_pinned, "cuMemHostAlloc", "hipHostMalloc",                                            \
    (void** memory, size_t bytes, unsigned flags))                                                 \
  X(free_pinned, "cuMemFreeHost", "hipHostFree", (void* memory))                                   \
  X(create_stream, "cuStreamCreateWithPriority", "hipStreamCreateWithPriority",                    \
    (Stream* stream, unsigned flags, int priority))                                                \
  X(destroy_stream, "cuStreamDestroy_v2", "hipStreamDestroy", (Stream stream))                     \
  X(stream_wait_event, "cuStreamWaitEvent", "hipStreamWaitEvent",                                  \
    (Stream stream, Event event, unsigned flags))                                                  \
  X(stream_is_capturing, "cuStreamIsCapturing", "hipStreamIsCapturing",                            \
    (Stream stream, int* status))                                                                  \
  X(create_event, "cuEventCreate", "hipEventCreateWithFlags", (Event* event, unsigned flags))      \
  X(destroy_event, "cuEventDestroy_v2", "hipEventDestroy", (Event event))                          \
  X(record_event, "cuEventRecord", "hipEventRecord", (Event event, Stream stream))                 \
  X(query_event, "cuEventQuery", "hipEventQuery", (Event event))                                   \
  X(get_ipc_memory, "cuIpcGetMemHandle", "hipIpcGetMemHandle",                                     \
    (IpcMemory* handle, Pointer memory))                                                           \
  X(open_ipc_memory, "cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle",                               \
    (Pointer* memory, IpcMemory handle, unsigned flags))                                           \
  X(close_ipc_memory, "cuIpcCloseMemHandle", "hipIpcCloseMemHandle", (Pointer memory))             \
  X(get_ipc_event, "cuIpcGetEventHandle", "hipIpcGetEventHandle",                                  \
    (IpcEvent* handle, Event event))                                                               \
  X(open_ipc_event, "cuIpcOpenEventHandle", "hipIpcOpenEventHandle",                               \
    (Event* event, IpcEvent handle))
// clang-format on

/// Results that callers compare with.
enum Result : int { kSuccess = 0, kNotReady = 600 };

enum class Vendor : uint8_t { kCuda, kHip };

/// CGX_CUDA: 1 is libcuda, 0 libamdhip64.
const Parameter& cuda_variable();

/// The driver's functions; none is missing.
struct Driver {
#define CGX_DECLARE(name, cuda, hip, arguments) int(*name) arguments = nullptr;
  CGX_DRIVER_CALLS(CGX_DECLARE)
#undef CGX_DECLARE
  Vendor vendor = Vendor::kCuda;
  std::string library;

  /// The driver of this process; the first call opens and initialises it. CGX_CUDA=0 selects
  /// libamdhip64. ResourceError names what is missing and how to install it: the library, one of
  /// its functions, a device. Thread-safe; a failed call may be repeated.
  static const Driver& get();

  /// Throws unless `result` is kSuccess. `call`: name here.
  void check(int result, const char* call) const;
};

#define GPU(driver, call, ...) (driver).check((driver).call(__VA_ARGS__), #call)

/// Makes a context current on this thread for the time of a scope.
class InContext {
 public:
  InContext(const Driver& driver, Context context);
  ~InContext();
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const Driver& driver_;
};

}  // namespace cgx::device
