// Objects of a group for the tensors of one GPU: a stream of its own, the kernels, and an engine
// over communicators of device memory.
#pragma once

#include <c10/core/Stream.h>

#include <memory>

#include "device/queue.h"
#include "reduce/engine.h"
#include "tensors/gpu/kernels.h"

namespace cgx {

class GpuLane {
 public:
  /// ResourceError if the driver, the kernels or a stream is not available.
  GpuLane(c10::Device device, const LoadKernels& load);
  ~GpuLane();

  c10::Device device() const { return side_.device(); }
  const c10::Stream& side() const { return side_; }
  const device::Queue& queue() const { return *queue_; }

  /// `lockstep`: messages have no headers. `on_callers_thread`: nothing in the engine waits on the
  /// host.
  void serve(std::unique_ptr<Engine> engine, bool lockstep, bool on_callers_thread);
  Engine& engine() const { return *engine_; }
  bool lockstep() const { return lockstep_; }
  bool on_callers_thread() const { return on_callers_thread_; }

 private:
  c10::Stream side_;
  std::unique_ptr<device::Queue> queue_;
  const gpu::KernelModule* kernels_ = nullptr;
  std::unique_ptr<Engine> engine_;
  bool lockstep_ = false, on_callers_thread_ = false;
};

}  // namespace cgx
