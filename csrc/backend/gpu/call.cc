#include "backend/gpu/call.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace cgx {

using c10::impl::VirtualGuardImpl;

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
