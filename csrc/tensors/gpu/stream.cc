#include "tensors/gpu/stream.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

}  // namespace cgx
