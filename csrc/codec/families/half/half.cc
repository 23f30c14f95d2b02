// `half`: float32 values rounded to 16 bits on the wire, as bf16 or fp16: presets of `float`.
//
//   payload   the values in the wire's type, little-endian: 2 bytes each
//
// Tensors of 16 bits travel in their own type, exact, whatever the wire's: a cast would lose bits
// and save none. Sums are float32 either way. A value beyond the wire's range becomes an infinity
// of its sign; infinities and NaN stay what they are, each in its place (a NaN that is rounded:
// base/nan.h).
#include "codec/families/float/codec.h"
#include "codec/families/list.h"

namespace cgx {
namespace {

formats::Casting casting_of(const CodecConfig& config) {
  const bool fp16 = config.text("format") == "fp16";
  return {.format = {fp16 ? 5 : 8, fp16 ? 10 : 7}};
}

std::shared_ptr<const Codec> make(const CodecConfig& config) {
  return rounded::make_codec(config, casting_of(config), 0);
}

void bound(const CodecConfig& config, DType dtype, const float* x, size_t n, double* limits) {
  rounded::bound(casting_of(config), dtype, x, n, limits);
}

void gpu_runs(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
              DType dtype, uint64_t payload) {
  rounded::gpu_runs(casting_of(config), table, run, dtype, payload);
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
          .keeps_zeros = true,
      },
  };
  return *family;
}

}  // namespace cgx
