// Streams of a tensor's device, as torch hands them out and the driver takes them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "device/driver.h"

namespace cgx {

/// The device's current stream; its context is bound to the calling thread.
c10::Stream current_stream(c10::Device device);
/// A stream of torch's pool; the same.
c10::Stream side_stream(c10::Device device);
device::Stream handle_of(const c10::Stream& stream);

/// RuntimeError that says why if `stream` is captured into a graph.
void refuse_capture(const c10::Stream& stream, const char* what, const char* why);

}  // namespace cgx
