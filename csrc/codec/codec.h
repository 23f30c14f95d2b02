// The contract of a wire codec: what bytes a run of numbers becomes, and back.
//
// A run is the values of one layer of a gradient bucket (or of one tensor) that travels in one
// message. A payload's size depends on the number of values only, so no sizes are exchanged. Codecs
// are pure functions of their arguments: no transport, no threads, no state. Same input, same
// bytes, on every SIMD level and on the GPU. Tensors are of the types in kComputed
// (base/dtype_set.h). Thread-safety: all methods are const and may be called concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "codec/config.h"
#include "codec/ops/random.h"

namespace cgx {

/// The size of a payload of n values, as data, so that callers can also count with symbols:
///
///   start                         if there are values
///   + bucket_bytes                for each bucket
///   + ceil(bits * v / 8)          for the v values in buckets
///   + rest_bytes                  for each value in no bucket
///
/// The values after the last whole bucket are in no bucket if rest_bytes is not 0; else they are a
/// bucket, too.
struct PayloadSize {
  size_t bits = 0;
  size_t bucket = 1;
  size_t bucket_bytes = 0;
  size_t rest_bytes = 0;
  size_t start = 0;

  size_t of(size_t n) const {
    const size_t whole = n / bucket * bucket, coded = rest_bytes > 0 ? whole : n;
    const size_t buckets = n / bucket + (coded > whole ? 1 : 0);
    // The bits are counted by eights of values, without overflow.
    return (n > 0 ? start : 0) + buckets * bucket_bytes + coded / 8 * bits +
           (coded % 8 * bits + 7) / 8 + (n - coded) * rest_bytes;
  }
};

class Codec {
 public:
  explicit Codec(CodecConfig config) : config_(std::move(config)), text_(config_.describe()) {}
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  const CodecConfig& config() const { return config_; }

  /// "maxmin bits=4 bucket_size=512 rounding=nearest"; goes into logs and errors.
  const std::string& describe() const { return text_; }

  /// Bits that a float32 value takes, without what travels with a bucket.
  virtual int bits() const = 0;

  /// Seed of the random numbers that it draws; 0 where it draws none.
  virtual uint64_t seed() const { return 0; }

  /// A layer may be cut into runs at multiples of this many values (counted from the layer's start)
  /// without changing any value's code.
  virtual size_t granule() const = 0;

  /// A run may be encoded and decoded in parts that start at multiples of this many values: such a
  /// part starts on a byte border of the payload. A multiple of granule().
  virtual size_t block() const = 0;

  /// Exact size of the payload of a run; needs no data. `dtype` is the tensor's type.
  virtual PayloadSize payload_size(DType dtype) const = 0;
  size_t encoded_bytes(size_t count, DType dtype) const { return payload_size(dtype).of(count); }

  /// Writes what a payload holds besides its parts. Parts are encoded after it, on any threads and in
  /// any order, and each may be decoded once it is encoded; encode() of a whole run does it itself.
  virtual void begin(RandomKey key, uint64_t index, size_t count, std::byte* payload) const {
    static_cast<void>(key), static_cast<void>(index), static_cast<void>(count);
    static_cast<void>(payload);
  }

  /// Encodes the values [first, first + n) of a run of `count` values.
  ///   x        value number `first` of the run; n values of type x_dtype, of any alignment
  ///   dtype    the tensor's type: the type of raw parts on the wire
  ///   x_dtype  dtype, or float32 for sums
  ///   first    a multiple of block(); first + n is a multiple of block(), or equal to count
  ///   index    number of the run's first value in the whole call: counter of the generator
  ///   payload  start of the run's payload (not of the part), encoded_bytes(count, dtype) bytes of
  ///            any alignment
  virtual void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first,
                      size_t n, RandomKey key, uint64_t index, std::byte* payload) const = 0;

  /// Decodes the values [first, first + n) into y[0 .. n): y = value, or y += value where `add` is
  /// set. Each NaN is the one of base/nan.h if y holds no other.
  virtual void decode(const std::byte* payload, DType dtype, size_t count, size_t first, size_t n,
                      float* y, bool add) const = 0;

  /// True if all values of a payload of `count` values are finite, given that the input was finite.
  /// A codec with a smaller range than float32 looks at the payload; others return true.
  virtual bool holds_finite(const std::byte* payload, DType dtype, size_t count) const {
    static_cast<void>(payload), static_cast<void>(dtype), static_cast<void>(count);
    return true;
  }

 protected:
  /// ConfigError unless [first, first + n) is a part of a run of `count` values, with borders at
  /// multiples of block(), or of `unit`.
  void check_part(size_t first, size_t n, size_t count) const {
    check_part(first, n, count, block());
  }
  static void check_part(size_t first, size_t n, size_t count, size_t unit);

 private:
  const CodecConfig config_;
  const std::string text_;
};

/// The codec of a configuration. Codecs are cached: equal configurations give the same object.
std::shared_ptr<const Codec> make_codec(const CodecConfig& config);
/// The codec of that name, with its defaults. ConfigError: no codec has this name.
std::shared_ptr<const Codec> make_codec(const std::string& name);

/// The codec of layers that are not compressed: the bytes of the tensor's own type.
const std::shared_ptr<const Codec>& raw_codec();

/// The largest count of values whose payload has `bytes` bytes. ConfigError if no count has
/// such a payload.
size_t largest_count(const Codec& codec, size_t bytes, DType dtype);

}  // namespace cgx
