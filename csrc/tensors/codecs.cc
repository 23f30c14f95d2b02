#include "tensors/codecs.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec/ops/convert.h"
#include "tensors/gpu/codecs.h"
#include "tensors/memory.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

// Values for which waking another thread pays.
constexpr size_t kPartValues = 1 << 16;
// Values that are decoded to float32 on the way to a tensor of another type: they stay in the
// first-level cache.
constexpr size_t kScratchValues = 4096;
constexpr size_t kAlignment = 16;  // of payloads on a GPU, whose kernels read meta as it lies there

// Outside of autograd: what a codec does has no gradient.
struct NoAutograd {
  at::AutoDispatchBelowADInplaceOrView below;
};

// The name of the type in Python.
std::string text_of(at::ScalarType type) {
  return "torch." + std::string(c10::getDtypeNames(type).first);
}

void check_tensor(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(!tensor.is_nested(), what, " is nested, allowed: a tensor with one shape");
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, what, " has the layout ", tensor.layout(),
                   ", allowed: torch.strided");
  TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.is_cuda(), what, " is on device ", tensor.device(),
                    ", allowed: cpu, cuda");
  check_storage(what, tensor);
}

bool is_aligned(const at::Tensor& payload) {
  return reinterpret_cast<uintptr_t>(payload.const_data_ptr()) % kAlignment == 0;
}

// The tensor, or a copy whose memory holds its values: a lazily negated view has others, lazy zeros
// have none.
at::Tensor dense(const at::Tensor& tensor) {
  if (tensor.is_neg() || tensor._is_zerotensor()) {
    return at::empty(tensor.sizes(), tensor.options()).copy_(tensor);
  }
  return tensor.contiguous();
}

bool can_take(const at::Tensor& out, const at::Tensor& payload) {
  if (out.storage().data() == payload.storage().data() && out.nbytes() > 0) return false;
  return out.is_contiguous() && !out.is_neg() && !out._is_zerotensor();
}

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
}

// Calls body(first, n) over parts of a run, on the caller's threads if it is long.
void in_parts(const Codec& codec, size_t count, const std::function<void(size_t, size_t)>& body) {
  if (count < 2 * kPartValues || count / codec.block() < 2) return body(0, count);
  const auto threads = torch_threads();
  const size_t parts = std::min(static_cast<size_t>(threads->threads()), count / kPartValues);
  if (parts < 2) return body(0, count);
  const size_t blocks = (count + codec.block() - 1) / codec.block();
  threads->run(parts, [&](size_t part) {
    const size_t first = blocks * part / parts * codec.block();
    const size_t last = std::min(blocks * (part + 1) / parts * codec.block(), count);
    if (first < last) body(first, last - first);
  });
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
  in_parts(codec, count, [&](size_t first, size_t n) {
    if (dtype == DType::kFloat32) {
      codec.decode(from, wire, count, first, n, reinterpret_cast<float*>(to) + first, add);
    } else {
      decode_narrow(codec, from, wire, count, first, n, to + first * size_of(dtype), dtype, add);
    }
  });
}

void decode_on_gpu(const Codec& codec, const at::Tensor& payload, DType wire, const at::Tensor& y,
                   bool add, const LoadKernels& load) {
  const at::Tensor from = is_aligned(payload) ? payload : payload.clone();
  const bool direct =
      y.scalar_type() == at::kFloat || (!add && codec_dtype("out.dtype", y.scalar_type()) == wire);
  if (direct) return gpu_decode(codec, from, wire, y, add, load);
  at::Tensor values = add ? y.to(at::kFloat) : at::empty(y.sizes(), y.options().dtype(at::kFloat));
  gpu_decode(codec, from, wire, values, add, load);
  const_cast<at::Tensor&>(y).copy_(values);
}

}  // namespace

DType codec_dtype(const char* what, at::ScalarType type) {
  if (const auto known = codec_type(type)) return *known;
  TORCH_CHECK_TYPE(false, what, " is ", text_of(type), ", allowed: float32, float16, bfloat16");
}

at::Tensor encode_tensor(const Codec& codec, const at::Tensor& tensor, const EncodeKey& key,
                         const std::optional<at::Tensor>& out, const LoadKernels& load) {
  check_tensor("tensor", tensor);
  const DType dtype = codec_dtype("tensor.dtype", tensor.scalar_type());
  const NoAutograd no_autograd;
  const SafeAfterFork one_thread;
  const at::Tensor x = dense(tensor);
  const auto count = static_cast<size_t>(x.numel());
  const auto size = static_cast<int64_t>(codec.encoded_bytes(count, dtype));
  at::Tensor payload;
  if (out) {
    check_tensor("out", *out);
    TORCH_CHECK_TYPE(out->scalar_type() == at::kByte && out->dim() == 1, "out is ",
                     text_of(out->scalar_type()), " with ", out->dim(),
                     " dimensions, allowed: uint8 with 1 dimension");
    TORCH_CHECK_VALUE(out->device() == x.device(), "out is on device ", out->device(),
                      ", allowed: ", x.device(), ", where tensor is");
    TORCH_CHECK_VALUE(out->numel() == size, "out has ", out->numel(), " bytes, allowed for ", count,
                      " values of ", text_of(tensor.scalar_type()), ": ", size);
    check_writable("encode", *out, false);
    if (can_take(*out, x) && (x.is_cpu() || is_aligned(*out))) payload = *out;
  }
  if (!payload.defined()) payload = at::empty({size}, x.options().dtype(at::kByte));
  const RandomKey random = random_key(codec.seed(), key.sequence, key.rank, key.stage);
  if (x.is_cuda()) {
    gpu_encode(codec, x, payload, random, key.index, load);
  } else {
    const std::byte* from = bytes_of(x);
    std::byte* to = bytes_of(payload);
    codec.begin(random, key.index, count, to);
    in_parts(codec, count, [&](size_t first, size_t n) {
      codec.encode(from + first * size_of(dtype), dtype, dtype, count, first, n, random, key.index,
                   to);
    });
  }
  if (!out) return payload;
  if (!payload.is_same(*out)) const_cast<at::Tensor&>(*out).copy_(payload);
  if (!out->is_inference()) out->unsafeGetTensorImpl()->bump_version();
  return *out;
}

at::Tensor decode_tensor(const Codec& codec, const at::Tensor& given,
                         const std::optional<at::Tensor>& out, std::optional<int64_t> numel,
                         std::optional<at::ScalarType> dtype, bool add, const LoadKernels& load) {
  check_tensor("payload", given);
  TORCH_CHECK_TYPE(given.scalar_type() == at::kByte && given.dim() == 1, "payload is ",
                   text_of(given.scalar_type()), " with ", given.dim(),
                   " dimensions, allowed: uint8 with 1 dimension");
  TORCH_CHECK_VALUE(out || !add, "add=True needs out, to which the values are added");
  const NoAutograd no_autograd;
  const SafeAfterFork one_thread;
  const at::Tensor payload = dense(given);
  if (out) {
    check_tensor("out", *out);
    TORCH_CHECK_VALUE(out->device() == payload.device(), "out is on device ", out->device(),
                      ", allowed: ", payload.device(), ", where payload is");
    TORCH_CHECK_VALUE(!numel || *numel == out->numel(), "numel is ", *numel,
                      ", allowed with this out: ", out->numel());
    codec_dtype("out.dtype", out->scalar_type());
    check_writable("decode", *out, false);
    numel = out->numel();
  }
  const at::ScalarType type = dtype ? *dtype : out ? out->scalar_type() : at::kFloat;
  const DType wire = codec_dtype("dtype", type);
  const auto bytes = static_cast<size_t>(payload.numel());
  TORCH_CHECK_VALUE(!numel || *numel >= 0, "numel is ", *numel, ", allowed: 0 or more");
  const size_t count = numel ? static_cast<size_t>(*numel) : largest_count(codec, bytes, wire);
  const size_t size = codec.encoded_bytes(count, wire);
  TORCH_CHECK_VALUE(size == bytes, "payload has ", bytes, " bytes, allowed for ", count,
                    " values of ", text_of(type), ": ", size);
  const bool direct = out && can_take(*out, payload);
  at::Tensor values;
  if (direct) {
    values = *out;
  } else if (out) {
    values = add ? at::empty(out->sizes(), out->options()).copy_(*out)
                 : at::empty(out->sizes(), out->options());
  } else {
    values = at::empty({static_cast<int64_t>(count)}, payload.options().dtype(type));
  }
  if (payload.is_cuda()) {
    decode_on_gpu(codec, payload, wire, values, add, load);
  } else {
    decode_on_cpu(codec, payload, wire, values, add);
  }
  if (!out) return values;
  if (!direct) const_cast<at::Tensor&>(*out).copy_(values);
  // Tells autograd that `out` has changed, as operators of torch do.
  if (!out->is_inference()) out->unsafeGetTensorImpl()->bump_version();
  return *out;
}

}  // namespace cgx
