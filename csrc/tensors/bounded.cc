#include "tensors/bounded.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "codec/bounded/element.h"
#include "codec/bounded/gpu/decode.h"
#include "codec/bounded/gpu/encode.h"
#include "codec/bounded/gpu/look.h"
#include "codec/bounded/gpu/slab.h"
#include "tensors/checks.h"
#include "tensors/dtypes.h"
#include "tensors/gpu/here.h"
#include "tensors/gpu/kernels.h"
#include "tensors/memory.h"
#include "tensors/one_thread_block.h"

namespace cgx {
namespace {

using bounded::BoundKind;
using bounded::Maps;
using bounded::Slab;
using bounded::on_gpu::BlocksCall;
using bounded::on_gpu::LookCall;

constexpr const char* kBounded = "bounded compression";

DType element_of(at::ScalarType type) {
  const std::optional<DType> known = dtype_of(type);
  TORCH_CHECK_TYPE(known && bounded::number_of(*known) > 0, "tensor.dtype is ", text_of(type),
                   ", allowed: float32, float64, float16, bfloat16, integers, bool");
  return *known;
}

// Maps have tables of some 100 KiB; slabs of one tensor share them.
std::shared_ptr<const Maps> maps_of(at::ScalarType type, const BoundedKey& key) {
  using Known = std::tuple<DType, int64_t, uint64_t, int64_t>;
  const Known wanted{element_of(type), key.kind, std::bit_cast<uint64_t>(key.bound), key.version};
  TORCH_CHECK_VALUE(key.kind >= 0 && key.kind <= bounded::kLastBoundKind, "kind is ", key.kind,
                    ", allowed: 0 to ", bounded::kLastBoundKind);
  TORCH_CHECK_VALUE(key.version >= bounded::kFirstVersion && key.version <= bounded::kLastVersion,
                    "version is ", key.version, ", allowed: ", bounded::kFirstVersion, " to ",
                    bounded::kLastVersion);
  static std::mutex mutex;
  static auto* latest = new std::deque<std::pair<Known, std::shared_ptr<const Maps>>>;
  const std::lock_guard lock(mutex);
  for (const auto& [known, maps] : *latest) {
    if (known == wanted) return maps;
  }
  auto maps =
      std::make_shared<const Maps>(std::get<DType>(wanted), static_cast<BoundKind>(key.kind),
                                   key.bound, static_cast<int>(key.version));
  latest->emplace_front(wanted, maps);
  if (latest->size() > 8) latest->pop_back();
  return maps;
}

void check_values(const char* what, const at::Tensor& tensor) {
  check_tensor(what, tensor);
  const bool dense = tensor.is_contiguous() && !tensor.is_neg() && !tensor._is_zerotensor();
  TORCH_CHECK_VALUE(dense, what, " has the shape ", tensor.sizes(), " and the strides ",
                    tensor.strides(), ", allowed: a contiguous tensor");
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  TORCH_CHECK_VALUE(address % static_cast<size_t>(tensor.itemsize()) == 0, what,
                    " begins at an address that is no multiple of ", tensor.itemsize(),
                    ", allowed: an aligned tensor");
}

at::Tensor new_bytes(size_t bytes, c10::Device device) {
  return at::empty({static_cast<int64_t>(bytes)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

Slab slab_of(const at::Tensor& forms, at::ScalarType type, size_t values, const BoundedKey& key,
             size_t reach, bool whole) {
  check_tensor("forms", forms);
  check_payload("forms", forms);
  TORCH_CHECK_VALUE(forms.is_cpu() && forms.is_contiguous(), "forms are on device ", forms.device(),
                    ", allowed: a contiguous tensor on cpu");
  // Refuses a wrong number of values before the slab allocates memory for its blocks.
  TORCH_CHECK_VALUE(values / bounded::kBlockValues <= count_of(forms), "forms have ", forms.numel(),
                    " bytes, too few for ", values, " values");
  return Slab(maps_of(type, key), values, {memory_of(forms), count_of(forms)}, reach, whole);
}

// The image of a slab, where its kernels run.
class Image {
 public:
  Image(const Slab& slab, c10::Device device)
      : host_(slab.image()), there_(device.is_cpu() ? at::Tensor() : upload(host_, device)) {}
  const std::byte* data() const { return there_.defined() ? memory_of(there_) : host_.data(); }

 private:
  const std::vector<std::byte> host_;
  const at::Tensor there_;
};

template <typename Memory, typename Call, typename Stage>
void run_on_cpu(const Call& call, const Stage& stage) {
  const auto memory = std::make_unique<Memory>();
  OneThreadBlock block;
  for (uint64_t i = 0; i < call.count; ++i) stage(block, *memory, call, i);
}

template <typename Work>
void with_word(bool wide, const Work& work) {
  if (wide) return work.template operator()<int64_t>();
  work.template operator()<int32_t>();
}

}  // namespace

at::Tensor bounded_look(const at::Tensor& tensor, const BoundedKey& key) {
  const at::AutoDispatchBelowADInplaceOrView below;
  check_values("tensor", tensor);
  const Slab slab(maps_of(tensor.scalar_type(), key), count_of(tensor));
  at::Tensor out = new_bytes(slab.look_bytes() * slab.blocks(), tensor.device());
  LookCall call = slab.look_call();
  call.x = bytes_of(tensor);
  call.out = bytes_of(out);
  if (tensor.is_cuda()) {
    const Here here(tensor.device(), kBounded);
    kernels_for(here.queue(), kernel_loader()).look(call, here.queue().stream());
  } else {
    std::memset(call.out, 0,
                static_cast<size_t>(out.numel()));  // samples of short blocks end early
    run_on_cpu<bounded::on_gpu::LookMemory>(
        call, [](auto&... all) { bounded::on_gpu::look_stage(all...); });
  }
  return out;
}

at::Tensor bounded_encode(const at::Tensor& tensor, const at::Tensor& forms, int64_t bytes,
                          const BoundedKey& key) {
  const at::AutoDispatchBelowADInplaceOrView below;
  check_values("tensor", tensor);
  Slab slab = slab_of(forms, tensor.scalar_type(), count_of(tensor), key, count_of(tensor), true);
  const size_t needed = slab.lay_out();
  TORCH_CHECK_VALUE(bytes >= 0 && static_cast<size_t>(bytes) == needed, "bytes is ", bytes,
                    ", allowed for these forms: ", needed);
  at::Tensor parts = new_bytes(needed, tensor.device());
  // Between the parts is room, which stays as it is: equal calls give equal bytes on the CPU.
  if (tensor.is_cpu() && needed > 0) std::memset(parts.mutable_data_ptr(), 0, needed);
  const auto fill_in = [&](const Image& image) {
    BlocksCall call = slab.blocks_call(image.data());
    call.x = bytes_of(tensor);
    call.parts = bytes_of(parts);
    return call;
  };
  if (tensor.is_cuda()) {
    const Here here(tensor.device(), kBounded);
    const Image image(slab, tensor.device());
    kernels_for(here.queue(), kernel_loader())
        .encode(fill_in(image), slab.wide(), here.queue().stream());
  } else {
    const Image image(slab, tensor.device());
    with_word(slab.wide(), [&]<typename Word>() {
      run_on_cpu<bounded::on_gpu::EncodeMemory<Word>>(
          fill_in(image), [](auto&... all) { bounded::on_gpu::encode_stage<Word>(all...); });
    });
  }
  return parts;
}

at::Tensor bounded_decode(const at::Tensor& parts, const at::Tensor& forms, int64_t values,
                          const BoundedKey& key, const at::Tensor& out) {
  const at::AutoDispatchBelowADInplaceOrView below;
  check_tensor("parts", parts);
  check_payload("parts", parts);
  check_values("parts", parts);
  check_values("out", out);
  check_device("parts", parts, "out", out);
  TORCH_CHECK_VALUE(!share_memory(parts, out), "parts share memory with out, allowed: apart");
  TORCH_CHECK_VALUE(values >= 0, "values is ", values, ", allowed: 0 or more");
  Slab slab =
      slab_of(forms, out.scalar_type(), static_cast<size_t>(values), key, count_of(out), false);
  const size_t needed = slab.lay_out();
  TORCH_CHECK_VALUE(count_of(parts) == needed, "parts have ", parts.numel(),
                    " bytes, allowed for these forms: ", needed);
  at::Tensor faults = at::zeros({static_cast<int64_t>(slab.blocks())},
                                at::TensorOptions().dtype(at::kInt).device(out.device()));
  const auto fill_in = [&](const Image& image) {
    BlocksCall call = slab.blocks_call(image.data());
    call.y = bytes_of(out);
    call.parts = bytes_of(parts);
    call.faults = reinterpret_cast<uint32_t*>(memory_of(faults));
    return call;
  };
  if (out.is_cuda()) {
    const Here here(out.device(), kBounded);
    const Image image(slab, out.device());
    kernels_for(here.queue(), kernel_loader())
        .decode(fill_in(image), slab.wide(), here.queue().stream());
  } else {
    const Image image(slab, out.device());
    with_word(slab.wide(), [&]<typename Word>() {
      run_on_cpu<bounded::on_gpu::DecodeMemory<Word>>(
          fill_in(image), [](auto&... all) { bounded::on_gpu::decode_stage<Word>(all...); });
    });
  }
  return faults;
}

}  // namespace cgx
