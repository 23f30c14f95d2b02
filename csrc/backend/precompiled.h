// torch's headers that most files of backend/ reach; build_engine.py compiles them once for all of
// these files. Nothing of the project, so that it need not be compiled again when that changes; a
// file goes on including what it uses. Not pybind11 either: whoever includes that emits some 300 KB
// of its functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
