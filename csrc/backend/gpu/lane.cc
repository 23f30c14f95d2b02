#include "backend/gpu/lane.h"

#include <c10/core/DeviceGuard.h>

#include <utility>

#include "reduce/schedule/device_stages.h"
#include "tensors/gpu/stream.h"

namespace cgx {

GpuLane::GpuLane(c10::Device device, const LoadKernels& load) : side_(side_stream(device)) {
  const c10::DeviceGuard on(device);
  queue_ = std::make_unique<device::Queue>(device::Driver::get(), handle_of(side_));
  kernels_ = &kernels_for(*queue_, load);
}

GpuLane::~GpuLane() = default;

void GpuLane::serve(std::unique_ptr<Engine> engine, bool lockstep, bool on_callers_thread) {
  engine->use(std::make_unique<DeviceStages>(*queue_, *kernels_));
  engine_ = std::move(engine);
  lockstep_ = lockstep;
  on_callers_thread_ = on_callers_thread;
}

}  // namespace cgx
