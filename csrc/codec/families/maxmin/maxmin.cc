// The payload of `maxmin`, the Codec over it, and its declaration.
//
//   meta    [unit, min] of each bucket, float32, little-endian: 8 bytes a bucket
//   codes   a stream of bits, lowest first, across bucket borders; zeros fill the last byte
//   rest    with skip_incomplete_buckets: the last n mod bucket_size values in the tensor's type;
//           meta and codes then cover full buckets only
#include "codec/families/maxmin/maxmin.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/float_mode.h"
#include "codec/families/list.h"
#include "codec/families/maxmin/formulas.h"
#include "codec/families/maxmin/gpu/runs.h"
#include "codec/families/maxmin/loops.h"

namespace cgx {
namespace {

static_assert(std::endian::native == std::endian::little, "meta is written as it lies in memory");

const maxmin::Loops& loops() { return cpu::at_level(maxmin::kLoops); }

class MaxMinCodec final : public Codec {
 public:
  explicit MaxMinCodec(const CodecConfig& config)
      : Codec(config),
        bits_(static_cast<int>(config.get("bits"))),
        bucket_(static_cast<size_t>(config.get("bucket_size"))),
        rounding_(static_cast<Rounding>(config.get("rounding"))),
        seed_(static_cast<uint64_t>(config.get("seed"))),
        skip_(config.get("skip_incomplete_buckets") != 0),
        exact_zeros_(config.get("exact_zeros") != 0) {}

  int bits() const override { return bits_; }
  uint64_t seed() const override { return rounding_ == Rounding::kStochastic ? seed_ : 0; }
  size_t granule() const override { return bucket_; }

  /// Whole buckets and whole groups of 8 codes, which are `bits` bytes.
  size_t block() const override { return std::lcm(bucket_, size_t{8}); }

  PayloadSize payload_size(DType dtype) const override {
    return {.bits = static_cast<size_t>(bits_),
            .bucket = bucket_,
            .bucket_bytes = sizeof(MaxMinMeta),
            .rest_bytes = skip_ ? size_of(dtype) : 0};
  }

  void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first, size_t n,
              RandomKey key, uint64_t index, std::byte* payload) const override {
    check_part(first, n, count);
    const Layout layout(*this, count);
    const size_t coded = coded_part(layout, first, n);
    const std::byte* in = static_cast<const std::byte*>(x);
    if (coded > 0) {
      FloatMode mode;
      loops().encode({coded, bucket_, bits_, exact_zeros_}, in, x_dtype, rounding_, key,
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
      loops().decode({coded, bucket_, bits_}, payload + first / bucket_ * sizeof(MaxMinMeta),
                     payload + codes_at(layout, first), y, add);
    }
    if (coded < n) {
      const size_t rest = n - coded;
      raw_codec()->decode(payload + layout.rest + (first + coded - layout.coded) * size_of(dtype),
                          dtype, rest, 0, rest, y + coded, add);
    }
  }

 private:
  /// Offsets of the parts of a payload.
  struct Layout {
    size_t coded;  // values
    size_t codes;  // byte
    size_t rest;   // byte

    Layout(const MaxMinCodec& codec, size_t count) {
      const size_t b = codec.bucket_;
      const size_t full = count / b;
      coded = codec.skip_ ? full * b : count;
      codes = (full + (coded > full * b ? 1 : 0)) * sizeof(MaxMinMeta);
      rest = codes + code_bytes(coded, codec.bits_);
    }
  };

  /// ceil(n * bits / 8) without overflow.
  static size_t code_bytes(size_t n, int bits) {
    const size_t width = static_cast<size_t>(bits);
    return n / 8 * width + (n % 8 * width + 7) / 8;
  }

  size_t codes_at(const Layout& layout, size_t first) const {
    return layout.codes + code_bytes(first, bits_);
  }

  static size_t coded_part(const Layout& layout, size_t first, size_t n) {
    if (first >= layout.coded) return 0;
    return n < layout.coded - first ? n : layout.coded - first;
  }

  const int bits_;
  const size_t bucket_;
  const Rounding rounding_;
  const uint64_t seed_;
  const bool skip_;
  const bool exact_zeros_;
};

std::shared_ptr<const Codec> make(const CodecConfig& config) {
  if (config.get("exact_zeros") != 0 && config.get("bits") < 2) {
    throw ConfigError(
        "exact_zeros=1 with bits=1 is not allowed: the two levels of a bucket are its minimum and "
        "its maximum, and none is left for zero; allowed: bits from 2 to 8");
  }
  return std::make_shared<MaxMinCodec>(config);
}

// The statement of formulas.h.
void bound(const CodecConfig& config, DType, const float* x, size_t n, double* limits) {
  const auto bucket = static_cast<size_t>(config.get("bucket_size"));
  const double levels = std::exp2(config.get("bits")) - 1;
  const bool nearest = config.get("rounding") == static_cast<int64_t>(Rounding::kNearest);
  const bool skip = config.get("skip_incomplete_buckets") != 0;
  const bool zeros = config.get("exact_zeros") != 0;
  for (size_t start = 0; start < n; start += bucket) {
    const size_t end = n - start < bucket ? n : start + bucket;
    if (skip && end - start < bucket) {
      std::fill(limits + start, limits + end, 0.0);
      return;
    }
    const auto [low, high] = std::minmax_element(x + start, x + end);
    double step = (static_cast<double>(*high) - static_cast<double>(*low)) / levels;
    if (step < 0x1p-126) step = std::ceil(step * 0x1p149) * 0x1p-149;
    const bool negative = *low < 0.0f && *high >= 0.0f;
    if (zeros && negative && std::find(x + start, x + end, 0.0f) != x + end) {
      step = step * levels / (levels - 1) * (1 + 0x1p-15) + 0x1p-141;
    }
    const double magnitude = std::max(std::fabs(*low), std::fabs(*high));
    const double limit = (nearest ? step / 2 : step) + 12 * 0x1p-24 * magnitude + 0x1p-148;
    std::fill(limits + start, limits + end, limit);
  }
}

}  // namespace

const Family& maxmin_family() {
  using Kind = Parameter::Kind;
  static const auto* family = new Family{
      {
          .name = "maxmin",
          .meaning = "Uniform quantization between the minimum and the maximum of each bucket",
          .parameters =
              {{.name = "bits",
                .variable = "CGX_COMPRESSION_QUANTIZATION_BITS",
                .kind = Kind::kInteger,
                .fallback = "4",
                .low = 1,
                .high = 8,
                .per_call = true,
                .meaning = "Bits per value"},
               {.name = "bucket_size",
                .variable = "CGX_COMPRESSION_BUCKET_SIZE",
                .kind = Kind::kInteger,
                .fallback = "512",
                .low = 1,
                .high = int64_t{1} << 40,
                .per_call = true,
                .meaning =
                    "Number of values that share a minimum and a step (8 bytes on the wire)"},
               {.name = "rounding",
                .variable = "CGX_COMPRESSION_ROUNDING",
                .kind = Kind::kChoice,
                .fallback = "nearest",
                .choices = "nearest,stochastic",
                .meaning = "Rounding of values to levels"},
               {.name = "seed",
                .variable = "CGX_COMPRESSION_SEED",
                .kind = Kind::kInteger,
                .fallback = "0",
                .low = 0,
                .high = INT64_MAX,
                .meaning = "Seed of random numbers: of stochastic rounding, and of the signs of a "
                           "rotation"},
               {.name = "skip_incomplete_buckets",
                .variable = "CGX_COMPRESSION_SKIP_INCOMPLETE_BUCKETS",
                .kind = Kind::kBoolean,
                .fallback = "0",
                .per_call = true,
                .meaning = "1: the last numel mod bucket_size values are sent exactly"},
               {.name = "exact_zeros",
                .variable = "CGX_COMPRESSION_EXACT_ZEROS",
                .kind = Kind::kBoolean,
                .fallback = "0",
                .per_call = true,
                .later = true,
                .meaning = "1: `maxmin` keeps exact zeros zero (2 bits or more)"}},
          .python = "MaxMin",
          .doc = "With ``levels = 2**bits - 1``, in float32 whatever the tensor's "
                 "type::\n\n    unit = (max - min) / levels\n    q = round((x - min) / unit)  "
                 "# the code\n    x^ = min + unit * q          # the decoded value\n\nWith "
                 "``rounding=\"nearest\"`` the error ``|x^ - x|`` is at most ``unit / 2`` and "
                 "a few roundings of\nfloat32; docs/numerics.md states the bounds. A bucket "
                 "of equal values is exact. A bucket with a\nNaN or an Inf decodes to NaN and "
                 "affects no other bucket.\n\nWith ``exact_zeros`` a value that is zero "
                 "decodes to zero: a bucket that holds a zero and negative values\ngets a "
                 "grid with zero on it, whose step is ``(max - min) / (levels - 1)`` at most. "
                 "For rows of an\nembedding that must not move.",
      },
      {
          .id = kMaxMinFamily,
          .make = make,
          .bound = bound,
          .gpu_runs = maxmin::gpu_runs,
      },
  };
  return *family;
}

}  // namespace cgx
