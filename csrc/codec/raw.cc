// The codec of segments that are not compressed: the bytes of the tensor's own type.
#include <cstring>

#include "base/error.h"
#include "codec/codec.h"
#include "codec/convert.h"

namespace cgx {
namespace {

// 64 bytes of float32, a cache line: parts that different threads write do not share one.
constexpr size_t kGranule = 16;

class RawCodec final : public Codec {
 public:
  RawCodec() {
    spec_.name = "raw";
    spec_.bits = 32;
    spec_.bucket_size = 1;
  }

  const CodecSpec& spec() const override { return spec_; }
  std::string describe() const override { return "raw"; }
  size_t granule() const override { return kGranule; }
  size_t block() const override { return kGranule; }
  size_t encoded_bytes(size_t count, DType dtype) const override { return count * size_of(dtype); }

  void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first, size_t n,
              RandomKey, uint64_t, std::byte* payload) const override {
    check_part(first, n, count);
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
    check_part(first, n, count);
    const std::byte* in = payload + first * size_of(dtype);
    if (add) {
      add_to_float(in, dtype, n, y);
    } else {
      to_float(in, dtype, n, y);
    }
  }

 private:
  static void check_part(size_t first, size_t n, size_t count) {
    if (first > count || n > count - first) {
      throw ConfigError(str_of("part of a run is first=", first, ", n=", n,
                               ", allowed: first + n up to ", count));
    }
  }

  CodecSpec spec_;
};

}  // namespace

std::shared_ptr<const Codec> raw_codec() {
  static const std::shared_ptr<const Codec> codec = std::make_shared<RawCodec>();
  return codec;
}

}  // namespace cgx
