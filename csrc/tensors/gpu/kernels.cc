#include "tensors/gpu/kernels.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace cgx {
namespace {

// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR; and HIP's.
struct Capability {
  int major, minor;
};
constexpr Capability kCuda{75, 76}, kHip{23, 61};

LoadKernels& loader() {
  static auto* load =
      new LoadKernels;  // never destroyed: threads may encode while the process ends
  return *load;
}

}  // namespace

const LoadKernels& kernel_loader() { return loader(); }

void set_kernel_loader(LoadKernels load) { loader() = std::move(load); }

const gpu::KernelModule& kernels_for(const device::Queue& queue, const LoadKernels& load) {
  static std::mutex mutex;
  static auto* loaded = new std::map<device::Context, std::unique_ptr<const gpu::KernelModule>>;
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<const gpu::KernelModule>& kernels = (*loaded)[queue.context()];
  if (kernels) return *kernels;
  const device::Driver& driver = queue.driver();
  const device::InContext here(driver, queue.context());
  int device = 0, major = 0, minor = 0;
  const Capability attributes = driver.vendor == device::Vendor::kCuda ? kCuda : kHip;
  GPU(driver, context_device, &device);
  GPU(driver, device_attribute, &major, attributes.major, device);
  GPU(driver, device_attribute, &minor, attributes.minor, device);
  const std::string image = load(major, minor);
  kernels = std::make_unique<const gpu::KernelModule>(driver, image.data());
  return *kernels;
}

}  // namespace cgx
