// Checks of a tensor's memory before a collective reads or writes it. Gloo checks nothing: it would
// write past the memory of an expanded tensor, take the gaps of a strided tensor for values, or
// omit a lazy sign.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "base/dtype.h"

namespace cgx {

/// `tensor` itself if its memory holds its values in order and nothing else, else a copy that does:
/// of a strided or expanded tensor, of a lazily negated or conjugated view, of zeros that have no
/// memory.
at::Tensor readable(const at::Tensor& tensor);
std::vector<at::Tensor> readable(const std::vector<at::Tensor>& tensors);
std::vector<std::vector<at::Tensor>> readable(const std::vector<std::vector<at::Tensor>>& lists);

/// Memory for the values of an output that is written as a whole, in order and without gaps:
/// `tensor` itself if its own is so, else new memory, to be copied to it.
at::Tensor writable(const at::Tensor& tensor);

/// ValueError, naming the collective and the remedy, for a tensor that cannot be a result: elements
/// share memory, or there is none. `lazy`: also refuses lazily negated or conjugated views.
void check_writable(const char* what, const at::Tensor& tensor, bool lazy = true);
void check_writable(const char* what, const std::vector<at::Tensor>& tensors);
void check_writable(const char* what, const std::vector<std::vector<at::Tensor>>& lists);

/// ValueError: the storage is shorter than the tensor's values need (it was resized).
void check_storage(const char* what, const at::Tensor& tensor);

/// The bytes of the values [first, first + values) of a contiguous tensor on the CPU, of `each` bytes a
/// value. ValueError, naming `what`: another tensor, or one that lacks these values.
std::byte* host_bytes(const char* what, const at::Tensor& tensor, size_t each, size_t first,
                      size_t values);

/// The codecs' name for the type; none for types that they do not take.
std::optional<DType> codec_type(at::ScalarType type);
/// The same of a tensor that the engine can reduce: dense, on the CPU or a GPU.
std::optional<DType> engine_dtype(const at::Tensor& tensor);

/// True if the two tensors, both dense, have bytes in common.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace cgx
