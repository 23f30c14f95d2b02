// Python's `_C.Codec`: a codec of the engine, on tensors, and on raw addresses for tests.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "codec/codec.h"

namespace cgx {

/// Immutable, hashable, by value: two handles of equal configurations hold the same codec.
struct CodecHandle {
  std::shared_ptr<const Codec> codec;
};

/// Null: exact.
using OptionalCodec = std::optional<CodecHandle>;
inline std::shared_ptr<const Codec> codec_of(const OptionalCodec& handle) {
  return handle ? handle->codec : nullptr;
}

/// The dtype with that number, as tests pass it. ConfigError if no dtype has it.
DType dtype_of(int code);

/// Adds Codec, families(), codec_names(), choose_codec(), and what tests and benchmarks call on raw
/// addresses: these are trusted, the Python side keeps the memory alive and has checked its size.
/// All release the GIL while they work. Errors: ValueError (ConfigError), TypeError.
void bind_codec(pybind11::module_& module);

}  // namespace cgx
