// Python bindings of the codecs, on raw addresses: what torch_cgx/codecs.py and the tests call.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "codec/codec.h"

namespace cgx {

/// Of a number, as Python has it; ConfigError.
DType dtype_of(int code);

/// Of a codec as torch_cgx/codecs.py names it; ConfigError.
std::shared_ptr<const Codec> codec_of(const std::string& name, int bits, int64_t bucket_size,
                                      const std::string& rounding, bool skip, uint64_t seed);

/// Adds codec_encode, codec_decode, codec_encoded_bytes, codec_info, codec_names, codec_convert,
/// codec_all_finite, codec_scan, codec_add, cpu_level, set_cpu_level, cpu_levels. All release the
/// GIL while they work. Addresses are trusted: the Python side keeps the memory alive and has
/// checked its size. Errors: ValueError (ConfigError).
void bind_codec(pybind11::module_& module);

}  // namespace cgx
