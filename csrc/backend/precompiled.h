// torch's headers that most files of backend/ reach; build_engine.py compiles them once for all of
// these files. No header of the project, so that a change of one does not compile this again. Every
// file still includes what it uses. Not pybind11 either: every file that includes it emits some
// 300 KB of its functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
