// What the fuzzers run: each target reads its input as a script and throws (CheckFailed, or
// anything that it does not expect) where the core does wrong. Memory errors are found by the
// sanitizers that it is built with.
//
// entry.cc makes a libFuzzer program of one target; tests/native/test_fuzz.cc runs all of them on
// the committed corpus and on random bytes, with any compiler.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace cgx::native {

/// The payload of a codec: any bytes decode without touching others, alike on every SIMD level.
void fuzz_decode(const uint8_t* data, size_t size);
/// Payloads of the error-bounded compressor: any bytes are values or an error, alike on every SIMD
/// level; any values come back as the bound promises.
void fuzz_bounded(const uint8_t* data, size_t size);
/// The header of a message.
void fuzz_header(const uint8_t* data, size_t size);
/// The plan builder: every value in exactly one message, borders on bucket borders, sizes in
/// budget.
void fuzz_plan(const uint8_t* data, size_t size);
/// The slots of shared memory, with a peer that writes what it likes into the control area.
void fuzz_slots(const uint8_t* data, size_t size);
/// The relay, with a peer that announces what it likes.
void fuzz_relay(const uint8_t* data, size_t size);
/// A payload of BDI: any bytes are refused or decode; what is encoded comes back within its bound.
void fuzz_bdi(const uint8_t* data, size_t size);
/// A whole collective on one rank, with altered messages from the others.
void fuzz_engine(const uint8_t* data, size_t size);

/// Takes values off the front of an input; zeros when it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  size_t left() const { return left_; }

  template <typename T>
  T take() {
    T value{};
    const size_t bytes = std::min(left_, sizeof(T));
    if (bytes > 0) std::memcpy(&value, data_, bytes);
    data_ += bytes;
    left_ -= bytes;
    return value;
  }
  /// In [0, below).
  size_t below(size_t limit) {
    return limit <= 256 ? take<uint8_t>() % limit : take<uint32_t>() % limit;
  }
  bool flip() { return (take<uint8_t>() & 1) != 0; }

  /// Fills memory; what the input does not cover repeats with a pattern.
  void fill(std::byte* out, size_t bytes) {
    const size_t have = std::min(left_, bytes);
    if (have > 0) std::memcpy(out, data_, have);
    for (size_t i = have; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 37);
    data_ += have;
    left_ -= have;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace cgx::native
