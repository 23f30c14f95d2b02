// FNV-1a, 64 bits: what ranks compare to see whether they mean the same (docs/wire_format.md).
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace cgx {

class Hasher {
 public:
  /// A number counts as eight bytes, lowest first.
  template <typename T>
  Hasher& add(const T& value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    auto rest = static_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i, rest >>= 8) byte(static_cast<unsigned char>(rest));
    return *this;
  }
  /// The bytes of a text and then their number, so that texts one after the other stay apart.
  Hasher& add_text(std::string_view text) {
    for (char c : text) byte(static_cast<unsigned char>(c));
    return add(text.size());
  }
  uint64_t value() const { return hash_; }

 private:
  void byte(unsigned char b) { hash_ = (hash_ ^ b) * 0x100000001b3ULL; }
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace cgx
