// The contract of a codec: what bytes a run of numbers becomes, and back.
//
// A run is the part of one segment (one layer of a gradient bucket, one tensor) that travels in one
// message. Codecs are pure functions of their arguments: no transport, no threads, no state. Same
// input, same bytes, on every SIMD level. Thread-safety: all methods are const and may be called
// concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"

namespace cgx {

enum class Rounding : uint8_t { kNearest = 0, kStochastic = 1 };

/// What a user asks of a codec. Equal specs on two ranks mean equal bytes for equal input.
struct CodecSpec {
  std::string name = "maxmin";
  int bits = 4;
  int64_t bucket_size = 512;
  Rounding rounding = Rounding::kNearest;
  /// The last n mod bucket_size values of a segment are sent raw, in the tensor's own type.
  bool skip_incomplete_buckets = false;
  /// Seed of stochastic rounding.
  uint64_t seed = 0;

  bool operator==(const CodecSpec&) const = default;
};

/// Key of the counter-based generator: made of (seed, sequence number, rank, stage) by random_key()
/// in codec/random.h.
struct RandomKey {
  uint32_t low = 0;
  uint32_t high = 0;
};

class Codec {
 public:
  virtual ~Codec() = default;

  virtual const CodecSpec& spec() const = 0;

  /// "maxmin bits=4 bucket_size=512 rounding=nearest"; goes into logs and errors.
  virtual std::string describe() const = 0;

  /// A segment may be cut into runs at multiples of this many values (counted from the segment's
  /// start) without changing any value's code.
  virtual size_t granule() const = 0;

  /// A run may be encoded and decoded in parts that start at multiples of this many values: such a
  /// part starts on a byte border of the payload. A multiple of granule().
  virtual size_t block() const = 0;

  /// Exact size of the payload of a run of `count` values; needs no data. `dtype` is the tensor's
  /// type.
  virtual size_t encoded_bytes(size_t count, DType dtype) const = 0;

  /// Encodes the values [first, first + n) of a run of `count` values.
  ///   x        value number `first` of the run; n values of type x_dtype
  ///   dtype    the tensor's type: the type of raw parts on the wire. x_dtype is dtype, or float32
  ///   for sums. first    a multiple of block(); first + n is a multiple of block() or equal to
  ///   count index    number of the run's first value in the whole call; counter of the generator
  ///   payload  start of the run's payload (not of the part), encoded_bytes(count, dtype) bytes,
  ///   any alignment
  virtual void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first,
                      size_t n, RandomKey key, uint64_t index, std::byte* payload) const = 0;

  /// Decodes the values [first, first + n) into y[0 .. n): y = value, or y += value where `add` is
  /// set.
  virtual void decode(const std::byte* payload, DType dtype, size_t count, size_t first, size_t n,
                      float* y, bool add) const = 0;

  /// Whether all values of a payload of `count` ones are finite, where finite input does not say
  /// so: a codec whose range is smaller than float32's looks, others have no need to.
  virtual bool holds_finite(const std::byte* payload, DType dtype, size_t count) const {
    static_cast<void>(payload), static_cast<void>(dtype), static_cast<void>(count);
    return true;
  }
};

/// Makes the codec named spec.name, or throws ConfigError that names the bad field, its value and
/// what is allowed. Codecs are cached: equal specs give the same object. Its spec() leaves out what
/// means nothing to it.
std::shared_ptr<const Codec> make_codec(const CodecSpec& spec);

/// The codec of segments that are not compressed: the bytes of the tensor's own type.
std::shared_ptr<const Codec> raw_codec();

/// Adds a codec under a name (CGX_COMPRESSION_TYPE); a name that is taken is a ConfigError.
using CodecFactory = std::shared_ptr<const Codec> (*)(const CodecSpec&);
void register_codec(const std::string& name, CodecFactory factory);

/// Names that make_codec() knows, sorted, comma-separated.
std::string codec_names();

}  // namespace cgx
