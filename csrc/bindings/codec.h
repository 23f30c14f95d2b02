// Python's `_C.Codec`: a codec of the engine, on tensors.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "base/error.h"
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

/// The dtype with that number. ConfigError if no dtype has it.
inline DType dtype_of(int code) {
  if (code < 0 || code > 2) {
    throw ConfigError(
        str_of("dtype code is ", code, ", allowed: 0 (float32), 1 (float16), 2 (bfloat16)"));
  }
  return static_cast<DType>(code);
}

/// Adds Codec, families(), codec_names(), choose_codec() and the choice of the SIMD level. What
/// works on values releases the GIL. Errors: ValueError (ConfigError), TypeError.
void bind_codec(pybind11::module_& module);

}  // namespace cgx
