// Short names for torch's types.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace cgx {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

}  // namespace cgx
