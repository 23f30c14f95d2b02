// Reads and writes values in bytes of any alignment. Little-endian, as all supported machines are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
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

/// A whole number in 7 bits a byte, the lowest first; the highest bit of a byte says that more follow.
inline void append_number(std::vector<std::byte>& list, uint64_t value) {
  for (; value >= 128; value >>= 7) list.push_back(static_cast<std::byte>(value | 128));
  list.push_back(static_cast<std::byte>(value));
}

/// Takes one from the beginning of `in`. PayloadError: it is cut, or has more than 64 bits.
uint64_t take_number(std::span<const std::byte>& in);
/// The same for the next `count` bytes, and for a T.
std::span<const std::byte> take_bytes(std::span<const std::byte>& in, size_t count);
template <typename T>
T take(std::span<const std::byte>& in) {
  return get<T>(take_bytes(in, sizeof(T)).data());
}

}  // namespace cgx::bounded
