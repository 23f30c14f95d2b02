#include "tensors/gpu/codecs.h"

#include <ATen/Functions.h>

#include "base/error.h"
#include "tensors/gpu/here.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

constexpr uintptr_t kAlignment = 16;  // of payloads: the kernels read meta as it lies there

DType checked_dtype(const at::Tensor& tensor, const char* what) {
  if (const auto type = codec_type(tensor.scalar_type())) return *type;
  throw ConfigError(str_of(what, " is ", c10::toString(tensor.scalar_type()),
                           ", allowed: float32, float16, bfloat16"));
}

void check(const at::Tensor& values, const char* what, const at::Tensor& payload, size_t bytes) {
  if (!values.is_cuda()) {
    throw ConfigError(str_of(what, " is on ", values.device().str(), ", allowed here: cuda"));
  }
  if (payload.device() != values.device()) {
    throw ConfigError(str_of("payload is on ", payload.device().str(),
                             ", allowed: ", values.device().str(), ", where ", what, " is"));
  }
  if (payload.scalar_type() != at::kByte || static_cast<size_t>(payload.numel()) != bytes) {
    throw ConfigError(str_of("payload is ", payload.numel(), " values of ",
                             c10::toString(payload.scalar_type()), ", allowed: ", bytes,
                             " of uint8"));
  }
  if (!values.is_contiguous() || !payload.is_contiguous()) {
    throw ConfigError(str_of(what, " and payload have to be contiguous"));
  }
  if (reinterpret_cast<uintptr_t>(payload.const_data_ptr()) % kAlignment != 0) {
    throw ConfigError(str_of("payload is not aligned to ", kAlignment, " bytes"));
  }
}

// A table of runs on the device. A single run, which most codecs have, needs no memory there.
struct OnDevice {
  OnDevice(const gpu::RunTable& table, c10::Device device)
      : memory(upload(table.image(), device)),
        tables(table.tables(memory.defined() ? memory_of(memory) : nullptr)) {}
  at::Tensor memory;
  gpu::Tables tables;
};

}  // namespace

void gpu_encode(const Codec& codec, const at::Tensor& x, const at::Tensor& payload, RandomKey key,
                uint64_t index, const LoadKernels& load) {
  const DType dtype = checked_dtype(x, "tensor");
  const auto count = static_cast<size_t>(x.numel());
  check(x, "tensor", payload, codec.encoded_bytes(count, dtype));
  const Here here(x.device(), "a codec");
  if (count == 0) return;
  gpu::RunTable table;
  table.add(codec, dtype, 0, 0, count, index, 0, 0);
  const gpu::KernelModule& kernels = kernels_for(here.queue(), load);
  const OnDevice runs(table, x.device());
  gpu::EncodeCall call{};
  call.x = bytes_of(x);
  call.key = key;
  call.type = gpu::type_of(dtype);
  call.messages[0] = bytes_of(payload);
  kernels.encode(runs.tables, call, here.queue().stream());
}

void gpu_decode(const Codec& codec, const at::Tensor& payload, DType wire, const at::Tensor& y,
                bool add, const LoadKernels& load) {
  const DType dtype = checked_dtype(y, "out");
  if (dtype != DType::kFloat32 && (add || dtype != wire)) {
    throw ConfigError(str_of("out is ", name_of(dtype), ", allowed for ", add ? "sums of " : "",
                             name_of(wire), " values: float32",
                             add || wire == DType::kFloat32 ? "" : ", ",
                             add || wire == DType::kFloat32 ? "" : name_of(wire)));
  }
  const auto count = static_cast<size_t>(y.numel());
  check(y, "out", payload, codec.encoded_bytes(count, wire));
  const Here here(y.device(), "a codec");
  if (count == 0) return;
  gpu::RunTable table;
  table.add(codec, wire, 0, 0, count, 0, 0, 0);
  const gpu::KernelModule& kernels = kernels_for(here.queue(), load);
  const OnDevice runs(table, y.device());
  gpu::DecodeCall call{};
  call.y = bytes_of(y);
  call.type = gpu::type_of(dtype);
  call.add = add ? 1 : 0;
  call.messages[0] = bytes_of(payload);
  kernels.decode(runs.tables, call, here.queue().stream());
}

void gpu_roundtrip(const Codec& codec, const at::Tensor& x, const at::Tensor& y, RandomKey key,
                   uint64_t index, const LoadKernels& load) {
  const DType dtype = checked_dtype(x, "tensor");
  const auto count = static_cast<size_t>(x.numel());
  const at::Tensor payload = at::empty({static_cast<int64_t>(codec.encoded_bytes(count, dtype))},
                                       x.options().dtype(at::kByte));
  check(x, "tensor", payload, codec.encoded_bytes(count, dtype));
  const Here here(x.device(), "a codec");
  if (count == 0) return;
  gpu::RunTable table;
  table.add(codec, dtype, 0, 0, count, index, 0, 0);
  const gpu::KernelModule& kernels = kernels_for(here.queue(), load);
  const OnDevice runs(table, x.device());
  // A sum of this tensor alone: its encoding, and what receivers decode from that.
  gpu::SumCall call{};
  call.x = bytes_of(x);
  call.encoded = bytes_of(payload);
  call.y = bytes_of(y);
  call.key = key;
  call.divisor = 1;
  call.ranks = 1;
  call.own = gpu::type_of(dtype);
  call.type = gpu::type_of(dtype);
  kernels.sum(runs.tables, call, here.queue().stream());
}

}  // namespace cgx
