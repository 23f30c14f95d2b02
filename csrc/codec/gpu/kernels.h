// Launches the kernels of csrc/codec/gpu. Nothing here waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codec/gpu/run_table.h"
#include "codec/gpu/stages.h"
#include "device/driver.h"

namespace cgx::gpu {

/// The kernels, loaded into one context. Functions run in that context, which must be current, and
/// put their work on `stream`. Pointers in calls are the device's; tables and lists of pointers
/// have to stay until the work is done. ResourceError: the driver refused a call.
class KernelModule {
 public:
  /// `image`: a fatbin or PTX text with the kernels. Loads it into the current context.
  KernelModule(const device::Driver& driver, const void* image);
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  void encode(const EncodeCall& call, device::Stream stream) const;
  void decode(const DecodeCall& call, device::Stream stream) const;
  void sum(const SumCall& call, device::Stream stream) const;
  void finite(const FiniteCall& call, device::Stream stream) const;

 private:
  template <typename Call>
  void launch(device::Function kernel, const Call& call, uint64_t work,
              device::Stream stream) const;

  const device::Driver& driver_;
  device::Context context_ = nullptr;
  device::Module module_ = nullptr;
  device::Function encode_ = nullptr, decode_ = nullptr, sum_ = nullptr;
  device::Function long_encode_ = nullptr, long_sum_ = nullptr, finite_ = nullptr;
  // With error feedback.
  device::Function encode_feedback_ = nullptr, sum_feedback_ = nullptr;
  device::Function long_encode_feedback_ = nullptr, long_sum_feedback_ = nullptr;
  unsigned most_blocks_ = 1;
};

/// A table of runs on the device.
class DeviceTable {
 public:
  /// Copied on `stream`.
  DeviceTable(const device::Driver& driver, const RunTable& table, device::Stream stream);

  Table view() const {
    return {reinterpret_cast<const CodecRun*>(memory_.get()), tiles_, long_buckets_,
            static_cast<uint32_t>(runs_.size())};
  }

 private:
  std::vector<CodecRun> runs_;  // stays: the copy reads it later
  std::shared_ptr<std::byte> memory_;
  uint64_t tiles_ = 0, long_buckets_ = 0;
};

}  // namespace cgx::gpu
