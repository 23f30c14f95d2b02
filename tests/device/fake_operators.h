// The operators on tensors of the fake device.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "fake_memory.h"
#include "fake_streams.h"

namespace fake_cuda {

// The same memory as a tensor of the CPU. Does not keep it.
inline at::Tensor on_host(const at::Tensor& tensor) {
  at::Tensor view = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                                  at::TensorOptions().dtype(tensor.scalar_type()));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

inline Stream stream_of(const at::Tensor& tensor) {
  return current_stream(tensor.device().index());
}

namespace op {

inline at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<Device> device,
                        std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                                std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                std::optional<Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

// Between device and host: done, for the host, when this returns (torch waits for the device's end
// of it, too). Only copies of pinned memory with non_blocking run when their turn comes; they keep
// that memory.
inline at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.is_same(from)) return to;
  const at::Tensor source = from.expand(to.sizes());
  if (to.numel() == 0) return to;
  const at::Tensor& host = to.is_cuda() ? source : to;
  const bool later = non_blocking && !host.is_cuda() && pinned().owns(host.data_ptr());
  const at::Tensor view = source.is_cuda() ? on_host(source) : later ? source : source.clone();
  const Stream stream = stream_of(to.is_cuda() ? to : from);
  enqueue(stream, [to = to.is_cuda() ? on_host(to) : to, view]() mutable { to.copy_(view); });
  if (!to.is_cuda() && !later) synchronize(stream);
  return to;
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::Tensor written = to;
  return op::copy(written, from, non_blocking);
}

inline const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                                std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!format || *format == at::MemoryFormat::Contiguous, "resize_: contiguous only");
  auto* tensor = self.unsafeGetTensorImpl();
  c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
  const size_t needed = at::detail::computeStorageNbytesContiguous(
      sizes, self.element_size(), static_cast<size_t>(self.storage_offset()));
  if (needed > storage->nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr grown = allocator().allocate(needed);
    allocator().copy_data(grown.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(grown));  // the old memory goes back to the same stream
    storage->set_nbytes(needed);
  }
  tensor->set_sizes_contiguous(sizes);
  return self;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) op::resize(to, from.sizes(), std::nullopt);
  return op::copy_from(from, to, false);
}

inline at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  enqueue(stream_of(self), [self = on_host(self), value]() mutable { self.fill_(value); });
  return self;
}
inline at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  return op::fill(self, value.item());
}
inline at::Tensor& zero(at::Tensor& self) { return op::fill(self, 0); }

// In place, on the stream. What could raise an error (a result of another dtype) runs at the call.
template <typename F>
at::Tensor& in_place(at::Tensor& self, const at::Tensor& other, F&& run) {
  at::Tensor operand = other.is_cuda() ? on_host(other) : other;
  const bool sure = other.is_cuda()
                        ? other.scalar_type() == self.scalar_type() && other.sizes() == self.sizes()
                        : other.dim() == 0 && self.is_floating_point() && !other.is_complex();
  if (!sure) {
    synchronize(stream_of(self));
    at::Tensor view = on_host(self);
    run(view, operand);
    return self;
  }
  if (!other.is_cuda()) operand = other.clone();
  if (self.numel() == 0) return self;
  enqueue(stream_of(self), [self = on_host(self), operand, run]() mutable { run(self, operand); });
  return self;
}
inline at::Tensor& add(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return in_place(self, other,
                  [alpha](at::Tensor& to, const at::Tensor& from) { to.add_(from, alpha); });
}
inline at::Tensor& mul(at::Tensor& self, const at::Tensor& other) {
  return in_place(self, other, [](at::Tensor& to, const at::Tensor& from) { to.mul_(from); });
}
inline at::Tensor& div(at::Tensor& self, const at::Tensor& other) {
  return in_place(self, other, [](at::Tensor& to, const at::Tensor& from) { to.div_(from); });
}

inline void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator().record(self.storage().data_ptr(), stream);
}

inline at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset,
                               at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, sizes, strides);
}
inline at::Tensor& set_empty(at::Tensor& self) {
  self.set_(op::empty({0}, self.scalar_type(), {}, self.device(), {}, {}));
  return self;
}

}  // namespace op

// It copies to the host, which waits for the current stream, and back.
inline void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(op::empty));
  m.impl("empty_strided", TORCH_FN(op::empty_strided));
  m.impl("copy_", TORCH_FN(op::copy));
  m.impl("_copy_from", TORCH_FN(op::copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(op::copy_from_and_resize));
  m.impl("resize_", TORCH_FN(op::resize));
  m.impl("fill_.Scalar", TORCH_FN(op::fill));
  m.impl("fill_.Tensor", TORCH_FN(op::fill_tensor));
  m.impl("zero_", TORCH_FN(op::zero));
  m.impl("add_.Tensor", TORCH_FN(op::add));
  m.impl("mul_.Tensor", TORCH_FN(op::mul));
  m.impl("div_.Tensor", TORCH_FN(op::div));
  m.impl("record_stream", TORCH_FN(op::record_stream));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(op::set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", TORCH_FN(op::set_empty));
}

}  // namespace fake_cuda
