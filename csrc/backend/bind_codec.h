// Python bindings of the codecs, on raw addresses: what torch_cgx/codecs.py and the tests call.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds codec_encode, codec_decode, codec_encoded_bytes, codec_info, codec_names, codec_convert,
/// codec_all_finite, codec_scan, codec_add, cpu_level, set_cpu_level, cpu_levels. All release the
/// GIL while they work. Addresses are trusted: the Python side keeps the memory alive and has
/// checked its size. Errors: ValueError (ConfigError).
void bind_codec(pybind11::module_& module);

}  // namespace cgx
