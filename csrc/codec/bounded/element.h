// The element types of tensors that the error-bounded compressor takes, as a payload names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/error.h"

namespace cgx::bounded {

/// The numbers are part of the payload's format.
enum class Element : uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kUInt8 = 5,
  kInt8 = 6,
  kInt16 = 7,
  kUInt16 = 8,
  kInt32 = 9,
  kUInt32 = 10,
  kInt64 = 11,
  kUInt64 = 12,
  kBool = 13,
};
inline constexpr int kLastElement = 13;

constexpr bool is_floating(Element e) { return e <= Element::kBFloat16; }
constexpr bool is_half(Element e) { return e == Element::kFloat16 || e == Element::kBFloat16; }

constexpr size_t bytes_of(Element e) {
  switch (e) {
    case Element::kFloat64:
    case Element::kInt64:
    case Element::kUInt64:
      return 8;
    case Element::kFloat32:
    case Element::kInt32:
    case Element::kUInt32:
      return 4;
    case Element::kFloat16:
    case Element::kBFloat16:
    case Element::kInt16:
    case Element::kUInt16:
      return 2;
    default:
      return 1;
  }
}

/// Calls function.template operator()<T>() with the integer type that has the element's bits: signed
/// where the order of the bits as signed numbers is, or can be made, the order of the values.
template <typename Function>
decltype(auto) with_bits(Element e, Function&& function) {
  switch (e) {
    case Element::kFloat64:
    case Element::kInt64:
    case Element::kUInt64:
      return function.template operator()<int64_t>();
    case Element::kFloat32:
    case Element::kInt32:
    case Element::kUInt32:
      return function.template operator()<int32_t>();
    case Element::kFloat16:
    case Element::kBFloat16:
    case Element::kInt16:
      return function.template operator()<int16_t>();
    case Element::kUInt16:
      return function.template operator()<uint16_t>();
    case Element::kInt8:
      return function.template operator()<int8_t>();
    default:
      return function.template operator()<uint8_t>();
  }
}

/// Words are what a block's values become before they are predicted: 64 bits for values of 8 bytes,
/// 32 bits for all others.
template <typename Function>
decltype(auto) with_word(Element e, Function&& function) {
  if (bytes_of(e) == 8) return function.template operator()<int64_t>();
  return function.template operator()<int32_t>();
}

/// A payload that does not follow the format. Becomes bounded.PayloadError in Python.
class PayloadError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

}  // namespace cgx::bounded
