#include "tensors/gpu/bounded.h"

#include <ATen/Functions.h>

#include "tensors/gpu/here.h"

namespace cgx {
namespace {

constexpr const char* kBounded = "bounded compression";

at::Tensor new_bytes(size_t bytes, c10::Device device) {
  return at::empty({static_cast<int64_t>(bytes)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

}  // namespace

at::Tensor gpu_bounded_look(const bounded::Slab& slab, const at::Tensor& x,
                            const LoadKernels& load) {
  check_on_gpu(x, "tensor");
  const Here here(x.device(), kBounded);
  at::Tensor out = new_bytes(slab.look_bytes() * slab.blocks(), x.device());
  bounded::on_gpu::LookCall call = slab.look_call();
  call.x = bytes_of(x);
  call.out = bytes_of(out);
  kernels_for(here.queue(), load).look(call, here.queue().stream());
  return out;
}

at::Tensor gpu_bounded_encode(const bounded::Slab& slab, const at::Tensor& x, size_t bytes,
                              const LoadKernels& load) {
  check_on_gpu(x, "tensor");
  const Here here(x.device(), kBounded);
  at::Tensor parts = new_bytes(bytes, x.device());
  const at::Tensor image = upload(slab.image(), x.device());
  bounded::on_gpu::BlocksCall call = slab.blocks_call(memory_of(image));
  call.x = bytes_of(x);
  call.parts = bytes_of(parts);
  kernels_for(here.queue(), load).encode(call, slab.wide(), here.queue().stream());
  return parts;
}

at::Tensor gpu_bounded_decode(const bounded::Slab& slab, const at::Tensor& parts,
                              const at::Tensor& y, const LoadKernels& load) {
  check_on_gpu(parts, "parts");
  check_on_gpu(y, "out");
  const Here here(y.device(), kBounded);
  at::Tensor faults = at::zeros({static_cast<int64_t>(slab.blocks())},
                                at::TensorOptions().dtype(at::kInt).device(y.device()));
  const at::Tensor image = upload(slab.image(), y.device());
  bounded::on_gpu::BlocksCall call = slab.blocks_call(memory_of(image));
  call.y = bytes_of(y);
  call.parts = bytes_of(parts);
  call.faults = reinterpret_cast<uint32_t*>(memory_of(faults));
  kernels_for(here.queue(), load).decode(call, slab.wide(), here.queue().stream());
  return faults;
}

}  // namespace cgx
