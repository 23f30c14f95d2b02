// The element types that the error-bounded compressor takes, and their numbers in a payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"

namespace cgx::bounded {

/// By number, from 1 on. The numbers are part of the payload's format.
inline constexpr DType kElements[] = {
    DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kUInt8,
    DType::kInt8,    DType::kInt16,   DType::kUInt16,  DType::kInt32,    DType::kUInt32,
    DType::kInt64,   DType::kUInt64,  DType::kBool,
};
inline constexpr int kLastElement = static_cast<int>(std::size(kElements));

/// number: 1 to kLastElement.
constexpr DType element_of(int number) { return kElements[number - 1]; }

/// The number of a type in a payload; 0: payloads do not hold it. Of a complex type none: a payload
/// has the number of real_of() and a flag.
constexpr int number_of(DType element) {
  for (int number = 1; number <= kLastElement; ++number) {
    if (element_of(number) == element) return number;
  }
  return 0;
}

constexpr bool is_half(DType e) { return e == DType::kFloat16 || e == DType::kBFloat16; }

/// Calls function.template operator()<T>() with the integer type that has the element's bits: signed
/// where the order of the bits as signed numbers is, or can be made, the order of the values.
template <typename Function>
decltype(auto) with_bits(DType e, Function&& function) {
  switch (e) {
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUInt64:
      return function.template operator()<int64_t>();
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32:
      return function.template operator()<int32_t>();
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
      return function.template operator()<int16_t>();
    case DType::kUInt16:
      return function.template operator()<uint16_t>();
    case DType::kInt8:
      return function.template operator()<int8_t>();
    default:
      return function.template operator()<uint8_t>();
  }
}

/// Words are what a block's values become before they are predicted: 64 bits for values of 8 bytes,
/// 32 bits for all others.
template <typename Function>
decltype(auto) with_word(DType e, Function&& function) {
  if (size_of(e) == 8) return function.template operator()<int64_t>();
  return function.template operator()<int32_t>();
}

/// A payload that does not follow the format. Becomes bounded.PayloadError in Python.
class PayloadError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

}  // namespace cgx::bounded
