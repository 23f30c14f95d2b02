// The codecs `bf16` and `fp16`: float32 values rounded to 16 bits on the wire.
//
//   payload   the values in the wire's type, little-endian: 2 bytes each
//
// Tensors of 16 bits travel in their own type, exact, whatever the wire's: a cast would lose bits
// and save none. Sums are float32 either way. A value beyond the wire's range becomes an infinity
// of its sign; infinities and NaN stay what they are, each in its place.
#include <bit>
#include <cstring>

#include "base/error.h"
#include "codec/builtin.h"
#include "codec/convert.h"
#include "codec/finite.h"

namespace cgx {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

// 64 bytes of the wire, a cache line: parts that different threads write do not share one.
constexpr size_t kGranule = 32;

class HalfCodec final : public Codec {
 public:
  HalfCodec(const char* name, DType wire) : wire_(wire) {
    spec_.name = name;
    spec_.bits = 16;
    spec_.bucket_size = 1;
  }

  const CodecSpec& spec() const override { return spec_; }
  std::string describe() const override { return spec_.name; }
  size_t granule() const override { return kGranule; }
  size_t block() const override { return kGranule; }
  size_t encoded_bytes(size_t count, DType) const override { return 2 * count; }

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

  static void check_part(size_t first, size_t n, size_t count) {
    const bool inside = first <= count && n <= count - first;
    if (!inside || first % kGranule != 0 || (n % kGranule != 0 && first + n != count)) {
      throw ConfigError(str_of("part of a run is first=", first, ", n=", n, ", allowed with count=",
                               count, ": multiples of ", kGranule, " up to the end of the run"));
    }
  }

  CodecSpec spec_;
  DType wire_;
};

}  // namespace

std::shared_ptr<const Codec> make_half(const CodecSpec& spec) {
  static const auto bf16 = std::make_shared<const HalfCodec>("bf16", DType::kBFloat16);
  static const auto fp16 = std::make_shared<const HalfCodec>("fp16", DType::kFloat16);
  if (spec.bits != 16) {
    throw ConfigError(str_of("bits is ", spec.bits, ", allowed with codec ", spec.name, ": 16"));
  }
  return spec.name == "fp16" ? fp16 : bf16;
}

}  // namespace cgx
