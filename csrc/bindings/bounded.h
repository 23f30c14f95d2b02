// Python's `_C.Bounded...`: blocks of the error-bounded compressor, on raw addresses and bytes. The
// Python side (torch_cgx/bounded) knows tensors, files and the entropy coder.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds BoundedMaps, BoundedEncoder, BoundedDecoder and functions on payloads. Addresses are trusted:
/// the Python side keeps the memory alive and has checked its size. All release the GIL while they
/// work. Errors: ValueError (ConfigError and PayloadError).
void bind_bounded(pybind11::module_& module);

}  // namespace cgx
