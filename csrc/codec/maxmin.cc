// The payload of `maxmin` and the Codec over it.
//
//   meta    [unit, min] of each bucket, float32, little-endian: 8 bytes a bucket
//   codes   a stream of bits, lowest first, across bucket borders; the last byte is filled up with
//   0 rest    with skip_incomplete_buckets: the last n mod bucket_size values in the tensor's type;
//   meta and codes then
//           cover full buckets only
#include "codec/maxmin.h"

#include <bit>
#include <numeric>

#include "base/error.h"
#include "base/float_mode.h"
#include "codec/builtin.h"
#include "codec/cpu/kernels.h"

namespace cgx {
namespace {

static_assert(std::endian::native == std::endian::little, "meta is written as it lies in memory");

constexpr int64_t kMaxBucketSize = int64_t{1} << 40;

class MaxMinCodec final : public Codec {
 public:
  explicit MaxMinCodec(const CodecSpec& spec)
      : spec_(spec), bucket_(static_cast<size_t>(spec.bucket_size)) {}

  const CodecSpec& spec() const override { return spec_; }

  std::string describe() const override {
    const bool nearest = spec_.rounding == Rounding::kNearest;
    std::string text = str_of("maxmin bits=", spec_.bits, " bucket_size=", spec_.bucket_size,
                              " rounding=", nearest ? "nearest" : "stochastic");
    if (!nearest) text += str_of(" seed=", spec_.seed);
    if (spec_.skip_incomplete_buckets) text += " skip_incomplete_buckets";
    return text;
  }

  size_t granule() const override { return bucket_; }

  /// Whole buckets and whole groups of 8 codes, which are `bits` bytes.
  size_t block() const override { return std::lcm(bucket_, size_t{8}); }

  size_t encoded_bytes(size_t count, DType dtype) const override {
    const Layout layout(*this, count);
    return layout.rest + (count - layout.coded) * size_of(dtype);
  }

  void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first, size_t n,
              RandomKey key, uint64_t index, std::byte* payload) const override {
    check_part(first, n, count);
    const Layout layout(*this, count);
    const size_t coded = coded_part(layout, first, n);
    const std::byte* in = static_cast<const std::byte*>(x);
    if (coded > 0) {
      FloatMode mode;
      cpu::kernels().maxmin_encode({coded, bucket_, spec_.bits}, in, x_dtype, spec_.rounding, key,
                                   index + first, payload + first / bucket_ * sizeof(MaxMinMeta),
                                   payload + codes_at(layout, first));
    }
    if (coded < n) {
      const size_t rest = n - coded;
      raw_codec()->encode(in + coded * size_of(x_dtype), x_dtype, dtype, rest, 0, rest, key, 0,
                          payload + layout.rest + (first + coded - layout.coded) * size_of(dtype));
    }
  }

  void decode(const std::byte* payload, DType dtype, size_t count, size_t first, size_t n, float* y,
              bool add) const override {
    check_part(first, n, count);
    const Layout layout(*this, count);
    const size_t coded = coded_part(layout, first, n);
    if (coded > 0) {
      FloatMode mode;
      cpu::kernels().maxmin_decode({coded, bucket_, spec_.bits},
                                   payload + first / bucket_ * sizeof(MaxMinMeta),
                                   payload + codes_at(layout, first), y, add);
    }
    if (coded < n) {
      const size_t rest = n - coded;
      raw_codec()->decode(payload + layout.rest + (first + coded - layout.coded) * size_of(dtype),
                          dtype, rest, 0, rest, y + coded, add);
    }
  }

 private:
  /// Where the parts of a payload start.
  struct Layout {
    size_t coded;  // values
    size_t codes;  // byte
    size_t rest;   // byte

    Layout(const MaxMinCodec& codec, size_t count) {
      const size_t b = codec.bucket_;
      const size_t full = count / b;
      coded = codec.spec_.skip_incomplete_buckets ? full * b : count;
      codes = (full + (coded > full * b ? 1 : 0)) * sizeof(MaxMinMeta);
      rest = codes + code_bytes(coded, codec.spec_.bits);
    }
  };

  /// ceil(n * bits / 8) without overflow.
  static size_t code_bytes(size_t n, int bits) {
    const size_t width = static_cast<size_t>(bits);
    return n / 8 * width + (n % 8 * width + 7) / 8;
  }

  size_t codes_at(const Layout& layout, size_t first) const {
    return layout.codes + code_bytes(first, spec_.bits);
  }

  static size_t coded_part(const Layout& layout, size_t first, size_t n) {
    if (first >= layout.coded) return 0;
    return n < layout.coded - first ? n : layout.coded - first;
  }

  void check_part(size_t first, size_t n, size_t count) const {
    const bool inside = first <= count && n <= count - first;
    if (!inside || first % block() != 0 || (n % block() != 0 && first + n != count)) {
      throw ConfigError(str_of("part of a run is first=", first, ", n=", n, ", allowed with count=",
                               count, ": multiples of ", block(), " up to the end of the run"));
    }
  }

  CodecSpec spec_;
  size_t bucket_;
};

}  // namespace

std::shared_ptr<const Codec> make_maxmin(const CodecSpec& spec) {
  if (spec.bits < 1 || spec.bits > 8) {
    throw ConfigError(str_of("bits is ", spec.bits, ", allowed: 1 to 8"));
  }
  if (spec.bucket_size < 1 || spec.bucket_size > kMaxBucketSize) {
    throw ConfigError(
        str_of("bucket_size is ", spec.bucket_size, ", allowed: 1 to ", kMaxBucketSize));
  }
  if (spec.rounding != Rounding::kNearest && spec.rounding != Rounding::kStochastic) {
    throw ConfigError(str_of("rounding is ", static_cast<int>(spec.rounding),
                             ", allowed: 0 (nearest), 1 (stochastic)"));
  }
  return std::make_shared<MaxMinCodec>(spec);
}

}  // namespace cgx
