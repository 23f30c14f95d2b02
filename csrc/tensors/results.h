// Memory of operators: values as they are read, and the memory that is written for a result `out`.
#pragma once

#include <ATen/core/Tensor.h>

namespace cgx {

/// The tensor, or a copy whose memory holds its values: a lazily negated view has others, lazy zeros
/// have none.
at::Tensor dense_values(const at::Tensor& tensor);

/// True if values can be written to its memory as they come.
bool can_write(const at::Tensor& out);

/// Whether their memory may have bytes in common: two storages may lie in one array of NumPy.
bool overlaps(const at::Tensor& out, const at::Tensor& other);

/// can_write() while `payload` is read.
bool can_take(const at::Tensor& out, const at::Tensor& payload);

/// The memory that an operator writes for `out`: its own where it can, else new memory.
class Result {
 public:
  /// direct: whether it can.
  Result(const at::Tensor& out, bool direct);

  const at::Tensor& memory() const { return memory_; }
  /// Before values are added to them.
  void fetch() const;
  void deliver() const;

 private:
  const at::Tensor out_, memory_;
};

}  // namespace cgx
