// Conversion of tensors to forms that Gloo takes, and checks of arguments before Gloo gets them.
#pragma once

#include <vector>

#include "backend/adapters/torch_types.h"

namespace cgx {

/// True if Gloo does not move tensors of this type. Such tensors travel as bytes, which gives the
/// same result where values are only moved.
bool needs_bytes(const at::Tensor& tensor);
/// Views of the same memory, flat.
at::Tensor as_bytes(const at::Tensor& tensor);
Tensors as_bytes(const Tensors& tensors);
std::vector<Tensors> as_bytes(const std::vector<Tensors>& lists);

/// An error for an empty list.
const at::Tensor& first_of(const Tensors& tensors);
/// ValueError for another number of tensors than one.
const at::Tensor& single(const char* what, const Tensors& tensors);
Tensors flatten(const std::vector<Tensors>& lists);

/// A view with at least one dimension: Gloo reads the first dimension of tensors that it scatters.
at::Tensor with_dimension(const at::Tensor& tensor);

// Checks of arguments that Gloo makes too late, when the peers already wait for this rank.
// ValueError or TypeError that names the collective `what`.

/// The list must have one tensor per rank.
void check_list(const char* what, const char* list, size_t length, size_t expected);
/// The root must give one list with one tensor per rank, the other ranks nothing.
void check_lists(const char* what, const char* list, const std::vector<Tensors>& lists, int rank,
                 int64_t root, int size);
/// The tensors must have the type of `like`, and as many values.
void check_alike(const char* what, const Tensors& tensors, const at::Tensor& like);
/// The tensors must have the type and the device of `like`.
void check_same_type(const char* what, const Tensors& tensors, const at::Tensor& like);
void check_root(const char* what, int64_t root, int size);
/// The tensors must have a type that Gloo reduces.
void check_reducible(const char* what, const Tensors& tensors);

}  // namespace cgx
