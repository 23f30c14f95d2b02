#include "tensors/codecs.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec/ops/convert.h"
#include "tensors/checks.h"
#include "tensors/gpu/codecs.h"
#include "tensors/memory.h"
#include "tensors/results.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

// Values that are decoded to float32 on the way to a tensor of another type: they stay in the
// first-level cache.
constexpr size_t kScratchValues = 4096;
// Values of a slice of roundtrip(): with its payload it stays in the second-level cache.
constexpr size_t kSliceValues = 1 << 14;
constexpr size_t kAlignment = 16;  // of payloads on a GPU, whose kernels read meta as it lies there

// Keeps what kernels call out of autograd; and off threads that a fork has lost.
struct Below {
  at::AutoDispatchBelowADInplaceOrView autograd;
  SafeAfterFork one_thread;
};

bool is_aligned(const at::Tensor& payload) {
  return reinterpret_cast<uintptr_t>(payload.const_data_ptr()) % kAlignment == 0;
}

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
}

// Decodes a part to values of another type than float32, or adds to them.
void decode_narrow(const Codec& codec, const std::byte* payload, DType wire, size_t count,
                   size_t first, size_t n, std::byte* y, DType dtype, bool add) {
  const size_t step = std::max(kScratchValues / codec.block(), size_t{1}) * codec.block();
  std::vector<float> scratch(std::min(step, n));
  for (size_t done = 0; done < n; done += step) {
    const size_t some = std::min(step, n - done);
    std::byte* to = y + done * size_of(dtype);
    if (add) to_float(to, dtype, some, scratch.data());
    codec.decode(payload, wire, count, first + done, some, scratch.data(), add);
    from_float(scratch.data(), dtype, some, to);
  }
}

void decode_on_cpu(const Codec& codec, const at::Tensor& payload, DType wire, const at::Tensor& y,
                   bool add) {
  const auto count = static_cast<size_t>(y.numel());
  const DType dtype = codec_dtype("out.dtype", y.scalar_type());
  const std::byte* from = bytes_of(payload);
  std::byte* to = bytes_of(y);
  in_parts(count, codec.block(), [&](size_t first, size_t n) {
    if (dtype == DType::kFloat32) {
      codec.decode(from, wire, count, first, n, reinterpret_cast<float*>(to) + first, add);
    } else {
      decode_narrow(codec, from, wire, count, first, n, to + first * size_of(dtype), dtype, add);
    }
  });
}

void decode_on_gpu(const Codec& codec, const at::Tensor& payload, DType wire, const at::Tensor& y,
                   bool add) {
  const at::Tensor from = is_aligned(payload) ? payload : payload.clone();
  const bool direct =
      y.scalar_type() == at::kFloat || (!add && codec_dtype("out.dtype", y.scalar_type()) == wire);
  if (direct) return gpu_decode(codec, from, wire, y, add, kernel_loader());
  at::Tensor values = add ? y.to(at::kFloat) : at::empty(y.sizes(), y.options().dtype(at::kFloat));
  gpu_decode(codec, from, wire, values, add, kernel_loader());
  const_cast<at::Tensor&>(y).copy_(values);
}

RandomKey random_key_of(const Codec& codec, const ElementKey& key) {
  TORCH_CHECK_VALUE(key.number <= INT64_MAX, "number is ", static_cast<int64_t>(key.number),
                    ", allowed: 0 to ", INT64_MAX);
  TORCH_CHECK_VALUE(key.rank >= 0 && key.rank <= INT32_MAX, "rank is ", key.rank,
                    ", allowed: 0 to ", INT32_MAX);
  TORCH_CHECK_VALUE(key.index <= INT64_MAX, "index is ", static_cast<int64_t>(key.index),
                    ", allowed: 0 to ", INT64_MAX);
  return local_key(codec.seed(), key.step, key.number, static_cast<int>(key.rank));
}

// Of x, dense, to a payload, dense.
void encode_to(const Codec& codec, const at::Tensor& x, DType dtype, const ElementKey& key,
               const at::Tensor& payload) {
  const RandomKey random = random_key_of(codec, key);
  if (x.is_cuda()) return gpu_encode(codec, x, payload, random, key.index, kernel_loader());
  const size_t count = count_of(x);
  const std::byte* from = bytes_of(x);
  std::byte* to = bytes_of(payload);
  codec.begin(random, key.index, count, to);
  in_parts(count, codec.block(), [&](size_t first, size_t n) {
    codec.encode(from + first * size_of(dtype), dtype, dtype, count, first, n, random, key.index,
                 to);
  });
}

void decode_to(const Codec& codec, const at::Tensor& payload, DType wire, const at::Tensor& y,
               bool add) {
  if (payload.is_cuda()) return decode_on_gpu(codec, payload, wire, y, add);
  decode_on_cpu(codec, payload, wire, y, add);
}

void check_size(const Codec& codec, const at::Tensor& payload, size_t count, at::ScalarType type) {
  const size_t size = codec.encoded_bytes(count, codec_dtype("dtype", type));
  TORCH_CHECK_VALUE(static_cast<size_t>(payload.numel()) == size, "payload has ", payload.numel(),
                    " bytes, allowed for ", count, " values of ", text_of(type), ": ", size);
}

// A slice is a run of its own: it begins where a layer may be cut (Codec::granule), so its codes
// are those of the whole, and its encoding stays in the cache.
void roundtrip_on_cpu(const Codec& codec, const std::byte* x, DType dtype, size_t count,
                      const RandomKey& key, uint64_t index, std::byte* y) {
  const size_t slice = std::max(kSliceValues / codec.granule(), size_t{1}) * codec.granule();
  // The last slice may take more bytes than a whole one: its incomplete bucket may be raw.
  std::vector<std::byte> payload(std::max(codec.encoded_bytes(std::min(slice, count), dtype),
                                          codec.encoded_bytes(count % slice, dtype)));
  std::vector<float> values(dtype == DType::kFloat32 ? 0 : std::min(slice, count));
  for (size_t done = 0; done < count; done += slice) {
    const size_t n = std::min(slice, count - done);
    const size_t at = done * size_of(dtype);
    codec.encode(x + at, dtype, dtype, n, 0, n, key, index + done, payload.data());
    float* to = dtype == DType::kFloat32 ? reinterpret_cast<float*>(y + at) : values.data();
    codec.decode(payload.data(), dtype, n, 0, n, to, false);
    if (dtype != DType::kFloat32) from_float(to, dtype, n, y + at);
  }
}

void roundtrip_to(const Codec& codec, const at::Tensor& x, DType dtype, const ElementKey& key,
                  const at::Tensor& y) {
  const RandomKey random = random_key_of(codec, key);
  if (x.is_cuda()) return gpu_roundtrip(codec, x, y, random, key.index, kernel_loader());
  const std::byte* from = bytes_of(x);
  std::byte* to = bytes_of(y);
  in_parts(count_of(x), codec.block(), [&](size_t first, size_t n) {
    const size_t at = first * size_of(dtype);
    roundtrip_on_cpu(codec, from + at, dtype, n, random, key.index + first, to + at);
  });
}

// Checked, dense, and its dtype.
std::pair<at::Tensor, DType> values_of(const at::Tensor& tensor) {
  check_tensor("tensor", tensor);
  const DType dtype = codec_dtype("tensor.dtype", tensor.scalar_type());
  return {dense_values(tensor), dtype};
}

at::Tensor payload_of(const at::Tensor& payload) {
  check_tensor("payload", payload);
  check_payload("payload", payload);
  return dense_values(payload);
}

}  // namespace

at::Tensor encode(const Codec& codec, const at::Tensor& tensor, const ElementKey& key) {
  const Below below;
  const auto [x, dtype] = values_of(tensor);
  const auto size = static_cast<int64_t>(codec.encoded_bytes(count_of(x), dtype));
  at::Tensor payload = at::empty({size}, x.options().dtype(at::kByte));
  encode_to(codec, x, dtype, key, payload);
  return payload;
}

void encode_out(const Codec& codec, const at::Tensor& tensor, const ElementKey& key,
                const at::Tensor& out) {
  const Below below;
  const auto [x, dtype] = values_of(tensor);
  check_tensor("out", out);
  check_payload("out", out);
  check_device("out", out, "tensor", x);
  const size_t size = codec.encoded_bytes(count_of(x), dtype);
  TORCH_CHECK_VALUE(count_of(out) == size, "out has ", out.numel(), " bytes, allowed for ",
                    x.numel(), " values of ", text_of(tensor.scalar_type()), ": ", size);
  check_writable("encode", out, false);
  const Result result(out, can_take(out, x) && (x.is_cpu() || is_aligned(out)));
  encode_to(codec, x, dtype, key, result.memory());
  result.deliver();
}

at::Tensor decode(const Codec& codec, const at::Tensor& given, int64_t numel, at::ScalarType type) {
  const Below below;
  const at::Tensor payload = payload_of(given);
  TORCH_CHECK_VALUE(numel >= 0, "numel is ", numel, ", allowed: 0 or more");
  const DType wire = codec_dtype("dtype", type);
  check_size(codec, payload, static_cast<size_t>(numel), type);
  at::Tensor values = at::empty({numel}, payload.options().dtype(type));
  decode_to(codec, payload, wire, values, false);
  return values;
}

void decode_out(const Codec& codec, const at::Tensor& given, std::optional<at::ScalarType> type,
                bool add, const at::Tensor& out) {
  const Below below;
  const at::Tensor payload = payload_of(given);
  check_tensor("out", out);
  check_device("out", out, "payload", payload);
  codec_dtype("out.dtype", out.scalar_type());
  check_writable("decode", out, false);
  const at::ScalarType wire_type = type.value_or(out.scalar_type());
  const DType wire = codec_dtype("dtype", wire_type);
  check_size(codec, payload, count_of(out), wire_type);
  const Result result(out, can_take(out, payload));
  if (add) result.fetch();
  decode_to(codec, payload, wire, result.memory(), add);
  result.deliver();
}

at::Tensor roundtrip(const Codec& codec, const at::Tensor& tensor, const ElementKey& key) {
  const Below below;
  const auto [x, dtype] = values_of(tensor);
  at::Tensor y = at::empty(x.sizes(), x.options());
  roundtrip_to(codec, x, dtype, key, y);
  return y;
}

void roundtrip_out(const Codec& codec, const at::Tensor& tensor, const ElementKey& key,
                   const at::Tensor& out) {
  const Below below;
  const auto [x, dtype] = values_of(tensor);
  check_tensor("out", out);
  check_device("out", out, "tensor", x);
  TORCH_CHECK_TYPE(out.scalar_type() == tensor.scalar_type(), "out is ", text_of(out.scalar_type()),
                   ", allowed: ", text_of(tensor.scalar_type()), ", as tensor");
  TORCH_CHECK_VALUE(out.sizes() == tensor.sizes(), "out has the shape ", out.sizes(),
                    ", allowed: ", tensor.sizes(), ", as tensor");
  check_writable("roundtrip", out, false);
  // In place, a slice is read before it is written; another overlap would mix the two.
  const bool in_place = x.const_data_ptr() == out.const_data_ptr() && x.is_cpu();
  const Result result(out, can_write(out) && (in_place || !overlaps(out, x)));
  roundtrip_to(codec, x, dtype, key, result.memory());
  result.deliver();
}

}  // namespace cgx
