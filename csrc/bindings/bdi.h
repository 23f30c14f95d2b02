#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// BDI (csrc/codec/bdi) for torch_cgx.bounded.bdi: on raw addresses, which are trusted, as the
/// Python side keeps the memory alive and has checked its size. All release the GIL while they work
/// and use torch's intra-op threads. Errors: ValueError (ConfigError).
void bind_bdi(pybind11::module_& m);

}  // namespace cgx
