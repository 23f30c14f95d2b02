// What the memory of a tensor must be like before a collective reads or writes it. Gloo looks at
// none of it: it would write past the memory of an expanded tensor, take what lies in the gaps of a
// strided one for its values, or leave a lazy sign out.
#pragma once

#include <ATen/core/Tensor.h>

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

/// ValueError, naming the collective and the remedy, for a tensor that cannot be a result: elements
/// share memory, or there is none. `lazy`: are lazily negated or conjugated views refused too?
void check_writable(const char* what, const at::Tensor& tensor, bool lazy = true);
void check_writable(const char* what, const std::vector<at::Tensor>& tensors);
void check_writable(const char* what, const std::vector<std::vector<at::Tensor>>& lists);

/// The type as codecs know it; none for those that they do not take.
std::optional<DType> codec_type(at::ScalarType type);
/// The same of a tensor that the engine can reduce: dense, on the CPU or a GPU.
std::optional<DType> engine_dtype(const at::Tensor& tensor);

/// Do the two tensors, both dense, have bytes in common?
bool share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace cgx
