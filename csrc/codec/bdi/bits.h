// Streams of bits, lowest first: bit k of a stream is bit k mod 8 of byte k / 8.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cgx::bdi {

static_assert(std::endian::native == std::endian::little, "streams are written as they lie");

/// Writes fields one behind the other. Touches no byte behind the last bit.
class BitWriter {
 public:
  explicit BitWriter(std::byte* out) : out_(out) {}

  /// width: 0 to 32; value < 2^width.
  void put(uint32_t value, uint32_t width) {
    waiting_ |= static_cast<uint64_t>(value) << filled_;
    filled_ += width;
    if (filled_ < 32) return;
    const auto word = static_cast<uint32_t>(waiting_);
    std::memcpy(out_, &word, sizeof word);
    out_ += sizeof word;
    waiting_ >>= 32;
    filled_ -= 32;
  }

  /// Fills the last byte up with zeros; returns where the next one lies.
  std::byte* finish() {
    for (; filled_ > 0; filled_ -= std::min(filled_, 8u), waiting_ >>= 8) {
      *out_++ = static_cast<std::byte>(waiting_);
    }
    return out_;
  }

 private:
  std::byte* out_;
  uint64_t waiting_ = 0;
  uint32_t filled_ = 0;
};

/// Bytes of so many bits.
constexpr uint64_t bytes_of(uint64_t bits) { return bits / 8 + (bits % 8 != 0 ? 1 : 0); }

/// Reads fields of any place. Touches only the `bytes` bytes of `data`.
class BitReader {
 public:
  BitReader(const std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  uint64_t bits() const { return uint64_t{bytes_} * 8; }

  /// The field of `width` (0 to 32) bits from bit `at` on, which must lie inside.
  uint32_t get(uint64_t at, uint32_t width) const {
    return static_cast<uint32_t>(load(at) & mask_of(width));
  }

  /// `count` fields, one behind the other.
  void get_many(uint64_t at, uint32_t width, uint32_t* out, size_t count) const {
    const uint64_t mask = mask_of(width);
    // As long as eight bytes lie inside, there is nothing to ask for each field.
    size_t i = 0;
    if (bytes_ >= 8 && width > 0) {
      const uint64_t last = (uint64_t{bytes_} - 8) * 8 + 7;
      const uint64_t whole = at > last ? 0 : (last - at) / width + 1;
      const size_t safe = std::min<uint64_t>(whole, count);
      for (; i < safe; ++i, at += width) {
        uint64_t word;
        std::memcpy(&word, data_ + at / 8, sizeof word);
        out[i] = static_cast<uint32_t>(word >> at % 8 & mask);
      }
    }
    for (; i < count; ++i, at += width) out[i] = get(at, width);
  }

 private:
  static uint64_t mask_of(uint32_t width) { return (uint64_t{1} << width) - 1; }

  // The bits from `at` on; zeros behind the end.
  uint64_t load(uint64_t at) const {
    const uint64_t byte = at / 8;
    uint64_t word = 0;
    const uint64_t left = byte < bytes_ ? bytes_ - byte : 0;
    if (left > 0) std::memcpy(&word, data_ + byte, std::min<uint64_t>(left, sizeof word));
    return word >> at % 8;
  }

  const std::byte* data_;
  size_t bytes_;
};

}  // namespace cgx::bdi
