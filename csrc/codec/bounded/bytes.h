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
  // Not by insert(), of which GCC 12 warns where it sees the size of the list.
  list.resize(list.size() + sizeof value);
  std::memcpy(list.data() + list.size() - sizeof value, &value, sizeof value);
}

}  // namespace cgx::bounded
