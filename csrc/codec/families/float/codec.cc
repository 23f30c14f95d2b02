#include "codec/families/float/codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/float_mode.h"
#include "codec/formats/bounds.h"
#include "codec/formats/gpu/packed.h"
#include "codec/formats/streams.h"
#include "codec/ops/convert.h"
#include "codec/ops/finite.h"

namespace cgx::rounded {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

using formats::Casting;
using formats::Overflow;
using formats::Rounding;

// Values of 16 bits that are 64 bytes of the wire, a cache line: parts that different threads write do not
// share one. Of fewer bits as many values as start a byte, and are 64 bytes of most widths.
constexpr size_t kGranuleOf16 = 32, kGranule = 128;

constexpr size_t kChunk =
    1024;  // values between the tensor's type and codes, in the first-level cache

/// If the format is bfloat16 or float16; or the tensor's type is one of them, and the format has 16 bits.
bool travels_raw(const Casting& casting, DType dtype, DType& wire) {
  if (casting.format.bits() != 16) return false;
  wire = dtype;
  if (dtype != DType::kFloat32) return true;
  const auto is = [&](int exponent, int mantissa) {
    return casting == Casting{.format = {exponent, mantissa, formats::Variant::kIeee}};
  };
  wire = is(5, 10) ? DType::kFloat16 : DType::kBFloat16;
  return is(5, 10) || is(8, 7);
}

class FloatCodec final : public Codec {
 public:
  FloatCodec(const CodecConfig& config, const Casting& casting, uint64_t seed)
      : Codec(config), casting_(casting), coder_(formats::coder_of(casting)), seed_(seed) {}

  int bits() const override { return coder_.bits; }
  uint64_t seed() const override { return casting_.rounding == Rounding::kStochastic ? seed_ : 0; }
  size_t granule() const override { return coder_.bits == 16 ? kGranuleOf16 : kGranule; }
  size_t block() const override { return granule(); }
  PayloadSize payload_size(DType) const override {
    return {.bits = static_cast<size_t>(coder_.bits)};
  }

  void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first, size_t n,
              RandomKey key, uint64_t index, std::byte* payload) const override {
    check_part(first, n, count);
    if (n == 0) return;
    if (x_dtype != DType::kFloat32 && x_dtype != dtype) {
      throw ConfigError(
          str_of("x_dtype is ", name_of(x_dtype), ", allowed: float32 or ", name_of(dtype)));
    }
    const auto* in = static_cast<const std::byte*>(x);
    std::byte* out = payload + coder_.bytes(first);
    DType wire;
    if (travels_raw(casting_, dtype, wire)) {
      if (x_dtype == DType::kFloat32) {
        from_float(static_cast<const float*>(x), wire, n, out);
      } else {
        std::memcpy(out, x, 2 * n);
      }
      return;
    }
    FloatMode mode;
    const bool direct =
        x_dtype == DType::kFloat32 && reinterpret_cast<uintptr_t>(x) % alignof(float) == 0;
    if (direct) {
      return formats::encode(coder_, static_cast<const float*>(x), n, key, index + first, out);
    }
    float values[kChunk];
    for (size_t i = 0; i < n; i += kChunk) {
      const size_t take = std::min(kChunk, n - i);
      to_float(in + i * size_of(x_dtype), x_dtype, take, values);
      formats::encode(coder_, values, take, key, index + first + i, out + coder_.bytes(i));
    }
  }

  void decode(const std::byte* payload, DType dtype, size_t count, size_t first, size_t n, float* y,
              bool add) const override {
    check_part(first, n, count);
    const std::byte* in = payload + coder_.bytes(first);
    DType wire;
    if (travels_raw(casting_, dtype, wire)) {
      return add ? add_to_float(in, wire, n, y) : to_float(in, wire, n, y);
    }
    FloatMode mode;
    formats::decode(coder_, in, n, y, add);
  }

  bool holds_finite(const std::byte* payload, DType dtype, size_t count) const override {
    DType wire;
    if (travels_raw(casting_, dtype, wire)) return all_finite(payload, wire, count);
    const bool stays =
        casting_.overflow == Overflow::kSaturate || casting_.rounding == Rounding::kZero;
    float values[kChunk];
    for (size_t i = 0; !stays && i < count; i += kChunk) {
      const size_t take = std::min(kChunk, count - i);
      formats::decode(coder_, payload + coder_.bytes(i), take, values, false);
      if (!all_finite(values, DType::kFloat32, take)) return false;
    }
    return true;
  }

 private:
  const Casting casting_;
  formats::Coder coder_;
  const uint64_t seed_;
};

}  // namespace

std::shared_ptr<const Codec> make_codec(const CodecConfig& config, const Casting& casting,
                                        uint64_t seed) {
  const int bits = casting.format.bits();
  if (bits > 8 && bits != 16) {
    throw ConfigError(str_of(config.name(), ": exponent=", casting.format.exponent,
                             " with mantissa=", casting.format.mantissa, " and the sign are ", bits,
                             " bits, allowed on the wire: 2 to 8, or 16"));
  }
  return std::make_shared<FloatCodec>(config, casting, seed);
}

void bound(const Casting& casting, DType dtype, const float* x, size_t n, double* limits) {
  const bool exact = casting.format.bits() == 16 && dtype != DType::kFloat32;
  for (size_t i = 0; i < n; ++i) {
    limits[i] = exact ? 0 : formats::error_bound(casting, static_cast<double>(x[i]));
  }
}

void gpu_runs(const Casting& casting, gpu::RunTable& table, const gpu::CodecRun& run, DType dtype,
              uint64_t payload) {
  DType wire;
  if (travels_raw(casting, dtype, wire)) return table.add_raw(run, wire, payload);
  gpu::CodecRun coded = run;
  coded.bits = static_cast<uint8_t>(casting.format.bits());
  coded.codes = payload;
  coded.tile = gpu::kTile;
  gpu::coding::pack({casting}, coded);
  table.append(coded);
}

}  // namespace cgx::rounded
