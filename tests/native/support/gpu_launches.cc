#include "gpu_launches.h"

#include "../../device/host_kernels.h"

namespace cgx::native {

void encode_all(const gpu::Tables& tables, const gpu::EncodeCall& call, uint32_t split) {
  device::encode_all(tables, call, split);
}
void decode_all(const gpu::Tables& tables, const gpu::DecodeCall& call, uint32_t split) {
  device::decode_all(tables, call, split);
}
void sum_all(const gpu::Tables& tables, const gpu::SumCall& call, uint32_t split) {
  device::sum_all(tables, call, split);
}

}  // namespace cgx::native
