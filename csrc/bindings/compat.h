// Python bindings of the stages of other systems' formats: what torch_cgx/compat calls.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds cuda_float_compress_encode, _decode, _range and _step, on raw addresses: these are trusted,
/// the Python side keeps the memory alive and has checked its size and its arguments. All release
/// the GIL. Errors: none.
void bind_compat(pybind11::module_& module);

}  // namespace cgx
