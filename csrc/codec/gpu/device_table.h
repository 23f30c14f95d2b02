// A table of runs on the device.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "codec/gpu/run_table.h"
#include "device/upload.h"

namespace cgx::gpu {

/// Single runs travel with the launch, so a table of one takes no memory here. ResourceError.
class DeviceTable {
 public:
  /// Copied on the stream of `uploads`.
  DeviceTable(device::Uploads& uploads, const RunTable& table);

  const Tables& tables() const { return tables_; }
  /// Memory of the device.
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<std::byte> memory_;
  size_t bytes_ = 0;
  Tables tables_;
};

}  // namespace cgx::gpu
