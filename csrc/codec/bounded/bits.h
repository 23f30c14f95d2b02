// Bits one after the other, the lowest of a byte first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace cgx::bounded {

/// Bits that a list is to end with. finish() appends them.
class BitWriter {
 public:
  /// count: 0 to 56; value: below 2^count.
  void put(uint64_t value, int count) {
    if (room_ - at_ < 8) grow();
    held_ |= value << used_;
    used_ += count;
    std::memcpy(bytes_.data() + at_, &held_, sizeof held_);
    at_ += static_cast<size_t>(used_ >> 3);
    held_ >>= used_ & ~7;
    used_ &= 7;
  }

  void clear() {
    at_ = 0;
    held_ = 0;
    used_ = 0;
  }

  /// Appends all bits, the last byte filled up with zeros.
  void finish(std::vector<std::byte>& out) {
    const size_t bytes = at_ + (used_ > 0 ? 1 : 0);
    out.insert(out.end(), bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(bytes));
    clear();
  }

 private:
  void grow() {
    room_ = 2 * room_ + 1024;
    bytes_.resize(room_);
  }

  std::vector<std::byte> bytes_;
  size_t room_ = 0, at_ = 0;
  uint64_t held_ = 0;
  int used_ = 0;
};

/// Behind the last byte it reads zeros, and says so.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> in) : in_(in) {}

  /// count: 0 to 56.
  uint64_t get(int count) {
    const size_t byte = at_ >> 3;
    uint64_t bits = 0;
    if (byte + 8 <= in_.size()) {
      std::memcpy(&bits, in_.data() + byte, sizeof bits);
    } else if (byte < in_.size()) {
      std::memcpy(&bits, in_.data() + byte, in_.size() - byte);
    }
    bits >>= at_ & 7;
    at_ += static_cast<size_t>(count);
    return bits & ((uint64_t{1} << count) - 1);
  }

  /// Bytes that were read, the begun one too; more than there are: it read behind the last one.
  size_t bytes() const { return (at_ + 7) >> 3; }

  /// Whether the bits that are left of the last byte that was begun are 0.
  bool rest_is_zero() const {
    return BitReader(*this).get(static_cast<int>((8 - at_ % 8) % 8)) == 0;
  }

 private:
  const std::span<const std::byte> in_;
  size_t at_ = 0;  // in bits
};

}  // namespace cgx::bounded
