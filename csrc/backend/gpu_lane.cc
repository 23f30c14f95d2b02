#include "backend/gpu_lane.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "reduce/device_stages.h"

namespace cgx {
namespace {

using c10::impl::VirtualGuardImpl;
using device::Driver;

// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR; and HIP's.
struct Capability {
  int major, minor;
};
constexpr Capability kCuda{75, 76}, kHip{23, 61};

device::Stream handle_of(const c10::Stream& stream) {
  return static_cast<device::Stream>(stream.native_handle());
}

}  // namespace

c10::Stream side_stream(c10::Device device) {
  const c10::DeviceGuard on(device);
  const VirtualGuardImpl guard(device.type());
  // Torch's events bind the context of the device to the thread, if nothing has yet.
  c10::Event binds(device.type());
  binds.record(guard.getStream(device));
  return guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

GpuCall::GpuCall(c10::Stream side, const std::vector<at::Tensor>& tensors)
    : side_(side),
      ready_(std::in_place, side.device_type()),
      done_(std::in_place, side.device_type()) {
  const VirtualGuardImpl guard(side.device_type());
  const c10::DeviceGuard on(side.device());
  ready_->record(guard.getStream(side.device()));
  for (const at::Tensor& tensor : tensors) {
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(), side_);
  }
}

// Whoever destroys an event goes to its device and comes back, which would give a thread of ours
// that never chose a device a context on the first one: hundreds of MiB there, by every process.
GpuCall::~GpuCall() {
  try {
    const c10::DeviceGuard on(side_.device());
    ready_.reset();
    done_.reset();
  } catch (const std::exception&) {
    // The device is lost: the events go without its being current.
  }
}

GpuCall::Turn::Turn(GpuCall* call) : call_(call) {
  if (call_ == nullptr) return;
  on_side_.emplace(call_->side_);
  call_->ready_->block(call_->side_);
}

GpuCall::Turn::~Turn() {
  if (call_ == nullptr) return;
  try {
    call_->done_->record(call_->side_);
  } catch (const std::exception& e) {
    TORCH_WARN("cgx: the end of a call could not be recorded on its stream: ", e.what());
  }
}

void GpuCall::make_stream_wait() const {
  const VirtualGuardImpl guard(side_.device_type());
  done_->block(guard.getStream(side_.device()));
}

bool GpuCall::query() const { return done_->query(); }

GpuLane::GpuLane(c10::Device device, const LoadKernels& load) : side_(side_stream(device)) {
  const c10::DeviceGuard on(device);
  queue_ = std::make_unique<device::Queue>(Driver::get(), handle_of(side_));
  kernels_ = kernels_for(*queue_, load);
}

GpuLane::~GpuLane() = default;

void GpuLane::serve(std::unique_ptr<Engine> engine, bool lockstep, bool on_callers_thread) {
  engine->use(std::make_unique<DeviceStages>(*queue_, *kernels_));
  engine_ = std::move(engine);
  lockstep_ = lockstep;
  on_callers_thread_ = on_callers_thread;
}

void refuse_capture(c10::Device device, const char* what) {
  const VirtualGuardImpl guard(device.type());
  const device::Stream stream = handle_of(guard.getStream(device));
  int capturing = 0;
  // What the driver refuses (no context yet, another stream's capture) is no capture of this one.
  const int result = Driver::get().stream_is_capturing(stream, &capturing);
  TORCH_CHECK(result != device::kSuccess || capturing == 0, "cgx: ", what,
              " inside the capture of a CUDA graph is not supported: numbers of calls, deadlines "
              "and checks of the peers belong to one call and would not be replayed; make the call "
              "outside of torch.cuda.graph()");
}

std::shared_ptr<const gpu::Kernels> kernels_for(const device::Queue& queue,
                                                const GpuLane::LoadKernels& load) {
  static std::mutex mutex;
  static auto* loaded = new std::map<device::Context, std::weak_ptr<const gpu::Kernels>>;
  const Driver& driver = queue.driver();
  const device::InContext here(driver, queue.context());
  std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const gpu::Kernels>& known = (*loaded)[queue.context()];
  if (auto kernels = known.lock()) return kernels;
  int device = 0, major = 0, minor = 0;
  const Capability attributes = driver.vendor == device::Vendor::kCuda ? kCuda : kHip;
  GPU(driver, context_device, &device);
  GPU(driver, device_attribute, &major, attributes.major, device);
  GPU(driver, device_attribute, &minor, attributes.minor, device);
  const std::string image = load(major, minor);
  auto kernels = std::make_shared<const gpu::Kernels>(driver, image.data());
  known = kernels;
  return kernels;
}

}  // namespace cgx
