#include "backend/gpu/call.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace cgx {

using c10::impl::VirtualGuardImpl;

device::Stream handle_of(const c10::Stream& stream) {
  return static_cast<device::Stream>(stream.native_handle());
}

namespace {

// Torch's events bind the context of their device to the thread, if nothing has yet.
void bind_context(const c10::Stream& stream) {
  c10::Event binds(stream.device_type());
  binds.record(stream);
}

}  // namespace

c10::Stream current_stream(c10::Device device) {
  const c10::DeviceGuard on(device);
  const c10::Stream stream = VirtualGuardImpl(device.type()).getStream(device);
  const device::Driver& driver = device::Driver::get();
  device::Context context = nullptr;
  GPU(driver, current_context, &context);
  if (context == nullptr) bind_context(stream);  // nothing here has used the device yet
  return stream;
}

c10::Stream side_stream(c10::Device device) {
  const c10::DeviceGuard on(device);
  const VirtualGuardImpl guard(device.type());
  bind_context(guard.getStream(device));
  return guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

void refuse_capture(const c10::Stream& stream, const char* what, const char* why) {
  int capturing = 0;
  // What the driver refuses (no context yet, another stream's capture) is no capture of this one.
  const int result = device::Driver::get().stream_is_capturing(handle_of(stream), &capturing);
  TORCH_CHECK(result != device::kSuccess || capturing == 0, "cgx: ", what,
              " inside the capture of a CUDA graph is not supported: ", why,
              " one call and would not be replayed; call it outside of torch.cuda.graph()");
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

// The destructor of an event switches to its device and back. On a thread that never chose a
// device, the way back would create a context on device 0: hundreds of MiB there, for every
// process.
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
    log_line(str_of("the end of a call could not be recorded on its stream: ", e.what()));
  }
}

void GpuCall::make_stream_wait() const {
  const VirtualGuardImpl guard(side_.device_type());
  done_->block(guard.getStream(side_.device()));
}

bool GpuCall::query() const { return done_->query(); }

}  // namespace cgx
