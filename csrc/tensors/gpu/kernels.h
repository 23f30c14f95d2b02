// The kernels that a process has loaded.
#pragma once

#include <functional>
#include <string>

#include "codec/gpu/kernels.h"
#include "device/queue.h"

namespace cgx {

/// Makes the image of the kernels for a compute capability: something that the driver can load.
using LoadKernels = std::function<std::string(int major, int minor)>;

/// Kernels in the context of `queue`, loaded once per context and never unloaded: a kernel in
/// flight may outlive every group. ResourceError: the driver refuses the image. Errors of `load`
/// pass through. The caller must not hold Python's lock, since `load` may take it.
const gpu::KernelModule& kernels_for(const device::Queue& queue, const LoadKernels& load);

/// The loader of this process, for operators; set once, when the module is imported.
const LoadKernels& kernel_loader();
void set_kernel_loader(LoadKernels load);

}  // namespace cgx
