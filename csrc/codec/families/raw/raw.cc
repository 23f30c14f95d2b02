// The codec of layers that are not compressed: the bytes of the tensor's own type.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "codec/codec.h"
#include "codec/families/list.h"
#include "codec/gpu/run_table.h"
#include "codec/ops/convert.h"

namespace cgx {
namespace {

// 64 bytes of float32, a cache line: parts that different threads write do not share one.
constexpr size_t kGranule = 16;

constexpr size_t kPartUnit = 1;  // values stand on byte borders, so any part will do

class RawCodec final : public Codec {
 public:
  explicit RawCodec(const CodecConfig& config) : Codec(config) {}

  int bits() const override { return 32; }
  size_t granule() const override { return kGranule; }
  size_t block() const override { return kGranule; }
  PayloadSize payload_size(DType dtype) const override { return {.bits = 8 * size_of(dtype)}; }

  void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first, size_t n,
              RandomKey, uint64_t, std::byte* payload) const override {
    check_part(first, n, count, kPartUnit);
    if (n == 0) return;
    std::byte* out = payload + first * size_of(dtype);
    if (x_dtype == dtype) {
      std::memcpy(out, x, n * size_of(dtype));
    } else if (x_dtype == DType::kFloat32) {
      from_float(static_cast<const float*>(x), dtype, n, out);
    } else {
      throw ConfigError(
          str_of("x_dtype is ", name_of(x_dtype), ", allowed: float32 or ", name_of(dtype)));
    }
  }

  void decode(const std::byte* payload, DType dtype, size_t count, size_t first, size_t n, float* y,
              bool add) const override {
    check_part(first, n, count, kPartUnit);
    const std::byte* in = payload + first * size_of(dtype);
    if (add) {
      add_to_float(in, dtype, n, y);
    } else {
      to_float(in, dtype, n, y);
    }
  }
};

std::shared_ptr<const Codec> make(const CodecConfig& config) {
  return std::make_shared<RawCodec>(config);
}

void bound(const CodecConfig&, DType, const float*, size_t n, double* limits) {
  std::fill(limits, limits + n, 0.0);
}

void gpu_runs(const CodecConfig&, gpu::RunTable& table, const gpu::CodecRun& run, DType dtype,
              uint64_t payload) {
  table.add_raw(run, dtype, payload);
}

}  // namespace

const Family& raw_family() {
  static const auto* family = new Family{
      {
          .name = "raw",
          .meaning = "Exact values",
          .parameters = {},
          .named = false,
      },
      {
          .id = 3,
          .make = make,
          .bound = bound,
          .gpu_runs = gpu_runs,
      },
  };
  return *family;
}

}  // namespace cgx
