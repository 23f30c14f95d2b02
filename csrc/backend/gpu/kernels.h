// The kernels that a process has loaded.
#pragma once

#include <functional>
#include <string>

#include "codec/gpu/kernels.h"
#include "device/queue.h"

namespace cgx {

/// The kernels for a device of this compute capability: an image that the driver takes.
using LoadKernels = std::function<std::string(int major, int minor)>;

/// Kernels in the context of `queue`, loaded once per context and kept: those in flight may outlive
/// every group. ResourceError: the driver refuses the image; and what `load` throws. Whoever calls
/// this does not hold Python's lock, which `load` may want.
const gpu::KernelModule& kernels_for(const device::Queue& queue, const LoadKernels& load);

}  // namespace cgx
