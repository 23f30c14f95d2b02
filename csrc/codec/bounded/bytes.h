// Reads and writes values in bytes of any alignment. Little-endian, as all supported machines are.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace cgx::bounded {

template <typename T>
T get(const std::byte* in, size_t at = 0) {
  T value;
  std::memcpy(&value, in + at, sizeof value);
  return value;
}

template <typename T>
void put(std::byte* out, size_t at, const T& value) {
  std::memcpy(out + at, &value, sizeof value);
}

template <typename T>
void append(std::vector<std::byte>& list, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  list.insert(list.end(), bytes, bytes + sizeof value);
}

}  // namespace cgx::bounded
