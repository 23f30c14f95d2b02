// What a group has for the tensors of one GPU: a stream of its own, the kernels, and an engine over
// carriers of device memory.
//
//   call (caller's thread)     the caller's stream is captured: `ready` is recorded on it, and the
//                              tensors' memory is tied to the lane's stream
//   run (worker; over carriers in lockstep the caller's thread)
//                              the lane's stream waits for `ready`; encode, exchange, decode are
//                              put on it; `done` is recorded
//   wait (caller's thread)     the caller's stream waits for `done`
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/gpu_codec.h"
#include "device/queue.h"
#include "reduce/engine.h"

namespace cgx {

/// Where one call stands on the streams. Shared by its task and its work.
class GpuCall {
 public:
  /// Records the caller's current stream of the device; ties the memory of `tensors` to `side`.
  GpuCall(c10::Stream side, const std::vector<at::Tensor>& tensors);
  ~GpuCall();
  GpuCall(const GpuCall&) = delete;
  GpuCall& operator=(const GpuCall&) = delete;

  /// While it lives, what the calling thread does goes to the side stream, behind what the caller
  /// had put on its own. When it ends, also by an exception, all of the call is there.
  class Turn {
   public:
    /// `call` null: does nothing.
    explicit Turn(GpuCall* call);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    GpuCall* const call_;
    std::optional<c10::StreamGuard> on_side_;
  };

  /// The calling thread's current stream waits until the call is done.
  void make_stream_wait() const;
  /// Is it done on the device?
  bool query() const;

  const c10::Stream& side() const { return side_; }

 private:
  const c10::Stream side_;
  std::optional<c10::Event> ready_, done_;  // but for the destructor always there
};

/// A stream of torch's pool; the context of the device is bound to the calling thread.
c10::Stream side_stream(c10::Device device);

class GpuLane {
 public:
  /// The kernels for a device of this compute capability: a fatbin, or PTX text.
  using LoadKernels = std::function<std::string(int major, int minor)>;

  /// ResourceError if the driver, the kernels or a stream cannot be had.
  GpuLane(c10::Device device, const LoadKernels& load);
  ~GpuLane();

  c10::Device device() const { return side_.device(); }
  const c10::Stream& side() const { return side_; }
  const device::Queue& queue() const { return *queue_; }

  /// `lockstep`: messages have no heads. `on_callers_thread`: nothing in the engine waits on the
  /// host.
  void serve(std::unique_ptr<Engine> engine, bool lockstep, bool on_callers_thread);
  Engine& engine() const { return *engine_; }
  bool lockstep() const { return lockstep_; }
  bool on_callers_thread() const { return on_callers_thread_; }

 private:
  c10::Stream side_;
  std::unique_ptr<device::Queue> queue_;
  std::shared_ptr<const gpu::Kernels> kernels_;
  std::unique_ptr<Engine> engine_;
  bool lockstep_ = false, on_callers_thread_ = false;
};

/// RuntimeError while the calling thread's stream of the device is captured into a graph.
void refuse_capture(c10::Device device, const char* what);

/// Kernels in the context of `queue`, loaded once per context while anybody uses them.
std::shared_ptr<const gpu::Kernels> kernels_for(const device::Queue& queue,
                                                const GpuLane::LoadKernels& load);

}  // namespace cgx
