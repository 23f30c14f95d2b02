// Integers and bools in the bits that they need: lossless.
//
// The code of a value is its distance from `low`, of `bits` bits. Codes are written as planes: n bytes
// for each whole byte of a code, lowest first, and then a stream of the bits that are left, lowest first,
// with zeros in the last byte. Pointers have any alignment. Pure, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace cgx {

/// Of n codes. bits: 1 to 64.
size_t packed_bytes(size_t n, int bits);

/// Values whose distance from `low` needs more bits lose the higher ones. Errors: ConfigError for a dtype
/// that is no integer and no bool, or other bits.
void pack_integers(const void* x, DType dtype, size_t n, int64_t low, int bits, std::byte* out);
void unpack_integers(const std::byte* codes, DType dtype, size_t n, int64_t low, int bits, void* y);

}  // namespace cgx
