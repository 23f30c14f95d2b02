#include "codec/gpu/device_table.h"

namespace cgx::gpu {

DeviceTable::DeviceTable(device::Uploads& uploads, const RunTable& table) {
  const std::vector<std::byte> image = table.image();
  bytes_ = image.size();
  memory_ = uploads.upload(image.data(), image.size());
  tables_ = table.tables(memory_.get());
}

}  // namespace cgx::gpu
