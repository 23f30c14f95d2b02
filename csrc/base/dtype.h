// Element types of tensors: one list for wire codecs, compressors, casts and bindings.
//
// A contract takes some of them (base/dtype_set.h) and names them when it refuses another one. Wire
// codecs and reducers compute on the first three, whose numbers travel in headers; container formats
// number the types in their own way (codec/bounded/element.h is one).
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx {

/// The numbers are on the wire (docs/wire_format.md): append, never renumber.
enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat64,
  kUInt8,
  kInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kBool,
  kComplex32,
  kComplex64,
  kComplex128,
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
  kFloat4E2M1FNX2,  // an element is a byte of two numbers
};
inline constexpr int kDTypeCount = 22;

enum class DTypeKind : uint8_t { kFloat, kInteger, kBool, kComplex };

struct DTypeFacts {
  const char* name;  // torch's, without "torch."
  uint8_t bytes;     // of an element
  DTypeKind kind;
};

/// By DType.
inline constexpr DTypeFacts kDTypeFacts[kDTypeCount] = {
    {"float32", 4, DTypeKind::kFloat},
    {"float16", 2, DTypeKind::kFloat},
    {"bfloat16", 2, DTypeKind::kFloat},
    {"float64", 8, DTypeKind::kFloat},
    {"uint8", 1, DTypeKind::kInteger},
    {"int8", 1, DTypeKind::kInteger},
    {"int16", 2, DTypeKind::kInteger},
    {"uint16", 2, DTypeKind::kInteger},
    {"int32", 4, DTypeKind::kInteger},
    {"uint32", 4, DTypeKind::kInteger},
    {"int64", 8, DTypeKind::kInteger},
    {"uint64", 8, DTypeKind::kInteger},
    {"bool", 1, DTypeKind::kBool},
    {"complex32", 4, DTypeKind::kComplex},
    {"complex64", 8, DTypeKind::kComplex},
    {"complex128", 16, DTypeKind::kComplex},
    {"float8_e4m3fn", 1, DTypeKind::kFloat},
    {"float8_e4m3fnuz", 1, DTypeKind::kFloat},
    {"float8_e5m2", 1, DTypeKind::kFloat},
    {"float8_e5m2fnuz", 1, DTypeKind::kFloat},
    {"float8_e8m0fnu", 1, DTypeKind::kFloat},
    {"float4_e2m1fn_x2", 1, DTypeKind::kFloat},
};

constexpr size_t size_of(DType dtype) { return kDTypeFacts[static_cast<size_t>(dtype)].bytes; }
constexpr DTypeKind kind_of(DType dtype) { return kDTypeFacts[static_cast<size_t>(dtype)].kind; }

constexpr bool is_floating(DType dtype) { return kind_of(dtype) == DTypeKind::kFloat; }

/// "unknown" of a number that a peer has made up.
constexpr const char* name_of(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  return number < kDTypeCount ? kDTypeFacts[number].name : "unknown";
}

/// The type of the two numbers of a complex element; of others the type itself.
constexpr DType real_of(DType dtype) {
  switch (dtype) {
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return dtype;
  }
}

}  // namespace cgx
