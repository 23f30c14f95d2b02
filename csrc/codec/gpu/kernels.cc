#include "codec/gpu/kernels.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/queue.h"

namespace cgx::gpu {
namespace {

using device::Driver;

constexpr int kMultiprocessors = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kHipMultiprocessors = 63;
}  // namespace

KernelModule::KernelModule(const Driver& driver, const void* image)
    : driver_(driver), context_(device::current_context(driver)) {
  int device = 0, multiprocessors = 0;
  GPU(driver, context_device, &device);
  const bool cuda = driver.vendor == device::Vendor::kCuda;
  GPU(driver, device_attribute, &multiprocessors, cuda ? kMultiprocessors : kHipMultiprocessors,
      device);
  most_blocks_ = static_cast<unsigned>(std::max(multiprocessors, 1)) * kBlocks;
  GPU(driver, load_module, &module_, image);
  GPU(driver, get_function, &encode_, module_, "cgx_encode");
  GPU(driver, get_function, &decode_, module_, "cgx_decode");
  GPU(driver, get_function, &sum_, module_, "cgx_sum");
  GPU(driver, get_function, &long_encode_, module_, "cgx_long_encode");
  GPU(driver, get_function, &encode_feedback_, module_, "cgx_encode_feedback");
  GPU(driver, get_function, &sum_feedback_, module_, "cgx_sum_feedback");
  GPU(driver, get_function, &long_encode_feedback_, module_, "cgx_long_encode_feedback");
  GPU(driver, get_function, &long_sum_feedback_, module_, "cgx_long_sum_feedback");
  GPU(driver, get_function, &long_sum_, module_, "cgx_long_sum");
  GPU(driver, get_function, &finite_, module_, "cgx_finite");
}

KernelModule::~KernelModule() {
  device::release_in(driver_, context_, [this] { driver_.unload_module(module_); });
}

template <typename Call>
void KernelModule::launch(device::Function kernel, const Call& call, uint64_t work,
                          device::Stream stream) const {
  if (work == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<uint64_t>(work, most_blocks_));
  void* arguments[] = {const_cast<Call*>(&call)};  // read before the driver returns
  GPU(driver_, launch_kernel, kernel, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
}

void KernelModule::encode(const EncodeCall& call, device::Stream stream) const {
  const bool feedback = call.feedback.residual != nullptr;
  launch(feedback ? long_encode_feedback_ : long_encode_, call, call.table.long_buckets, stream);
  launch(feedback ? encode_feedback_ : encode_, call, call.table.tiles, stream);
}

void KernelModule::decode(const DecodeCall& call, device::Stream stream) const {
  launch(decode_, call, call.table.tiles, stream);
}

void KernelModule::sum(const SumCall& call, device::Stream stream) const {
  const bool feedback = call.feedback.residual != nullptr;
  if (call.encoded != nullptr) {
    launch(feedback ? long_sum_feedback_ : long_sum_, call, call.table.long_buckets, stream);
  }
  launch(feedback ? sum_feedback_ : sum_, call, call.table.tiles, stream);
}

void KernelModule::finite(const FiniteCall& call, device::Stream stream) const {
  launch(finite_, call, call.table.tiles, stream);
}

DeviceTable::DeviceTable(const Driver& driver, const RunTable& table, device::Stream stream)
    : runs_(table.runs()),
      memory_(device::allocate_device(driver, runs_.size() * sizeof(CodecRun))),
      tiles_(table.tiles()),
      long_buckets_(table.long_buckets()) {
  if (runs_.empty()) return;
  GPU(driver, copy_to_device_async, reinterpret_cast<device::Pointer>(memory_.get()), runs_.data(),
      runs_.size() * sizeof(CodecRun), stream);
}

}  // namespace cgx::gpu
