// Launches the kernels of csrc/codec/cuda. Nothing here waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/cuda/stages.h"
#include "codec/run_table.h"
#include "device/driver.h"

namespace cgx::gpu {

/// The kernels, loaded into one context. Functions run in that context, which must be current, and
/// put their work on `stream`. Pointers in calls are the device's; tables and lists of pointers
/// have to stay until the work is done. ResourceError: the driver refused a call.
class Kernels {
 public:
  /// `image`: a fatbin or PTX text with the kernels. Loads it into the current context.
  Kernels(const device::Driver& driver, const void* image);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

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
  device::Function wide_encode_ = nullptr, wide_sum_ = nullptr, finite_ = nullptr;
  unsigned most_blocks_ = 1;
};

/// Memory of the device in the context that was current when it was made; freed there. Whoever
/// frees it has waited for all work on it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const device::Driver& driver, size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  unsigned char* data() const { return reinterpret_cast<unsigned char*>(memory_); }
  size_t bytes() const { return bytes_; }

 private:
  void free();

  const device::Driver* driver_ = nullptr;
  device::Context context_ = nullptr;
  device::Pointer memory_ = 0;
  size_t bytes_ = 0;
};

/// A table of runs on the device.
class DeviceTable {
 public:
  DeviceTable() = default;
  /// Copied on `stream`.
  DeviceTable(const device::Driver& driver, const RunTable& table, device::Stream stream);

  Table view() const {
    return {reinterpret_cast<const CodecRun*>(memory_.data()), tiles_, wide_buckets_,
            static_cast<uint32_t>(runs_.size())};
  }

 private:
  std::vector<CodecRun> runs_;  // stays: the copy reads it later
  DeviceMemory memory_;
  uint64_t tiles_ = 0, wide_buckets_ = 0;
};

}  // namespace cgx::gpu
