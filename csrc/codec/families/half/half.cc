// `half`: float32 values rounded to 16 bits on the wire, as bf16 or fp16.
//
//   payload   the values in the wire's type, little-endian: 2 bytes each
//
// Tensors of 16 bits travel in their own type, exact, whatever the wire's: a cast would lose bits
// and save none. Sums are float32 either way. A value beyond the wire's range becomes an infinity
// of its sign; infinities and NaN stay what they are, each in its place (a NaN that is rounded:
// base/nan.h).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "codec/codec.h"
#include "codec/families/list.h"
#include "codec/gpu/run_table.h"
#include "codec/ops/convert.h"
#include "codec/ops/finite.h"

namespace cgx {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

// 64 bytes of the wire, a cache line: parts that different threads write do not share one.
constexpr size_t kGranule = 32;

class HalfCodec final : public Codec {
 public:
  explicit HalfCodec(const CodecConfig& config)
      : Codec(config),
        wire_(config.text("format") == "fp16" ? DType::kFloat16 : DType::kBFloat16) {}

  int bits() const override { return 16; }
  size_t granule() const override { return kGranule; }
  size_t block() const override { return kGranule; }
  PayloadSize payload_size(DType) const override { return {.bits = 16}; }

  void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first, size_t n,
              RandomKey, uint64_t, std::byte* payload) const override {
    check_part(first, n, count);
    if (n == 0) return;
    const DType wire = wire_of(dtype);
    std::byte* out = payload + 2 * first;
    if (x_dtype == DType::kFloat32) {
      from_float(static_cast<const float*>(x), wire, n, out);
    } else if (x_dtype == dtype) {
      std::memcpy(out, x, 2 * n);
    } else {
      throw ConfigError(
          str_of("x_dtype is ", name_of(x_dtype), ", allowed: float32 or ", name_of(dtype)));
    }
  }

  void decode(const std::byte* payload, DType dtype, size_t count, size_t first, size_t n, float* y,
              bool add) const override {
    check_part(first, n, count);
    const std::byte* in = payload + 2 * first;
    if (add) {
      add_to_float(in, wire_of(dtype), n, y);
    } else {
      to_float(in, wire_of(dtype), n, y);
    }
  }

  bool holds_finite(const std::byte* payload, DType dtype, size_t count) const override {
    return all_finite(payload, wire_of(dtype), count);
  }

 private:
  DType wire_of(DType dtype) const { return dtype == DType::kFloat32 ? wire_ : dtype; }

  const DType wire_;
};

std::shared_ptr<const Codec> make(const CodecConfig& config) {
  return std::make_shared<HalfCodec>(config);
}

// A rounding of the format to nearest: half a unit in the last place, also of a subnormal one.
void bound(const CodecConfig& config, DType dtype, const float* x, size_t n, double* limits) {
  const bool fp16 = config.text("format") == "fp16";
  const double unit = fp16 ? 0x1p-11 : 0x1p-8, least = fp16 ? 0x1p-25 : 0x1p-134;
  const double largest = fp16 ? 65504 : 0x1.fep127;
  for (size_t i = 0; i < n; ++i) {
    const double magnitude = std::fabs(static_cast<double>(x[i]));
    limits[i] = dtype != DType::kFloat32 ? 0
                : magnitude > largest    ? std::numeric_limits<double>::infinity()
                                         : std::max(unit * magnitude, least);
  }
}

void gpu_runs(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
              DType dtype, uint64_t payload) {
  const DType wire = config.text("format") == "fp16" ? DType::kFloat16 : DType::kBFloat16;
  table.add_raw(run, dtype == DType::kFloat32 ? wire : dtype, payload);
}

}  // namespace

const Family& half_family() {
  using Kind = Parameter::Kind;
  static const auto* family = new Family{
      {
          .name = "half",
          .meaning = "Values of fp32 rounded to 16 bits, as bf16 or fp16",
          .parameters = {{.name = "bits",
                          .variable = "CGX_COMPRESSION_QUANTIZATION_BITS",
                          .kind = Kind::kInteger,
                          .fallback = "16",
                          .low = 16,
                          .high = 16,
                          .per_call = true,
                          .meaning = "Bits per value"},
                         {.name = "format",
                          .variable = "CGX_HALF",
                          .kind = Kind::kChoice,
                          .fallback = "bf16",
                          .choices = "bf16,fp16",
                          .per_call = true,
                          .meaning =
                              "Format at 16 bits: bf16 has the range of fp32; fp16 is finer, "
                              "but values from 65520 on become infinite",
                          .option = "half"}},
          .variant = "format",
          .python = "Half",
          .doc = "Rounding is to nearest, ties to even. Tensors of 16 bits are coded in their "
                 "own type, exact,\nwhatever the format. Infinities stay infinite, and NaN "
                 "stays NaN.",
      },
      {
          .id = 2,
          .make = make,
          .bound = bound,
          .gpu_runs = gpu_runs,
      },
  };
  return *family;
}

}  // namespace cgx
