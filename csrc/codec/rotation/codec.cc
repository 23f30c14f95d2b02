#include "codec/rotation/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/float_mode.h"
#include "codec/rotation/gpu/warp_block.h"

namespace cgx::rotation {
namespace {

static_assert(std::endian::native == std::endian::little, "key and scales are written as they lie");

// The state at value number 0 of a call: the key of the encoding. Signs that stayed the same from
// call to call would quantize a gradient that stays the same in one basis, where error feedback
// needs many steps for the largest coordinates; with new signs every error is of a Gaussian vector.
uint64_t start_of(RandomKey key) { return static_cast<uint64_t>(key.high) << 32 | key.low; }

class BlockCodec final : public Codec {
 public:
  BlockCodec(const CodecConfig& config, const cpu::ByLevel<Loops>& by_level)
      : Codec(config),
        by_level_(by_level),
        bits_(static_cast<int>(config.get("bits"))),
        block_(static_cast<uint32_t>(config.get("block_size"))),
        scale_(static_cast<Scale>(config.get("scale"))),
        seed_(static_cast<uint64_t>(config.get("seed"))) {}

  int bits() const override { return bits_; }
  uint64_t seed() const override { return seed_; }
  size_t granule() const override { return block_; }
  size_t block() const override { return block_; }

  PayloadSize payload_size(DType) const override {
    return {.bits = static_cast<size_t>(bits_),
            .bucket = block_,
            .bucket_bytes = sizeof(float),
            .start = kKeyBytes};
  }

  void begin(RandomKey key, uint64_t index, size_t count, std::byte* payload) const override {
    if (count == 0) return;
    const uint64_t signs = sign_state(start_of(key), index);
    std::memcpy(payload, &signs, kKeyBytes);
  }

  void encode(const void* x, DType x_dtype, DType, size_t count, size_t first, size_t n,
              RandomKey key, uint64_t index, std::byte* payload) const override {
    check_part(first, n, count);
    if (n == 0) return;
    if (n == count) begin(key, index, count, payload);
    const uint64_t signs = sign_state(start_of(key), index);
    FloatMode mode;
    cpu::at_level(by_level_).encode(
        {n, block_, bits_, scale_, sign_state(signs, first)}, static_cast<const std::byte*>(x),
        x_dtype, payload + scales_at(first), payload + codes_at(count) + code_bytes(first));
  }

  void decode(const std::byte* payload, DType, size_t count, size_t first, size_t n, float* y,
              bool add) const override {
    check_part(first, n, count);
    if (n == 0) return;
    uint64_t signs;
    std::memcpy(&signs, payload, kKeyBytes);
    FloatMode mode;
    cpu::at_level(by_level_).decode({n, block_, bits_, scale_, sign_state(signs, first)},
                                    payload + scales_at(first),
                                    payload + codes_at(count) + code_bytes(first), y, add);
  }

 private:
  size_t scales_at(size_t first) const { return kKeyBytes + first / block_ * sizeof(float); }
  size_t codes_at(size_t count) const {
    return kKeyBytes + (count / block_ + (count % block_ != 0 ? 1 : 0)) * sizeof(float);
  }
  /// ceil(n * bits / 8) without overflow.
  size_t code_bytes(size_t n) const {
    const auto width = static_cast<size_t>(bits_);
    return n / 8 * width + (n % 8 * width + 7) / 8;
  }

  const cpu::ByLevel<Loops>& by_level_;
  const int bits_;
  const uint32_t block_;
  const Scale scale_;
  const uint64_t seed_;
};

}  // namespace

std::shared_ptr<const Codec> make_block_codec(const CodecConfig& config,
                                              const cpu::ByLevel<Loops>& by_level) {
  return std::make_shared<BlockCodec>(config, by_level);
}

std::vector<Parameter> parameters_with(Parameter bits) {
  using Kind = Parameter::Kind;
  return {std::move(bits),
          {.name = "block_size",
           .variable = "CGX_COMPRESSION_BLOCK_SIZE",
           .kind = Kind::kInteger,
           .fallback = "1024",
           .low = kLeastBlock,
           .high = kLargestBlock,
           .power_of_two = true,
           .per_call = true,
           .meaning = "Number of values that are rotated together and share a scale (4 bytes on "
                      "the wire)"},
          {.name = "scale",
           .variable = "CGX_COMPRESSION_SCALE",
           .kind = Kind::kChoice,
           .fallback = "mse",
           .choices = "mse,unbiased",
           .per_call = true,
           .meaning = "Scale of a block: mse has the least error, unbiased the right mean over "
                      "ranks and steps"},
          {.name = "seed",
           .variable = "CGX_COMPRESSION_SEED",
           .kind = Kind::kInteger,
           .fallback = "0",
           .low = 0,
           .high = INT64_MAX,
           .meaning =
               "Seed of random numbers: of stochastic rounding, and of the signs of a rotation"}};
}

void bound(const CodecConfig& config, DType, const float* x, size_t n, double* limits) {
  const auto block = static_cast<size_t>(config.get("block_size"));
  const bool mse = config.get("scale") == static_cast<int64_t>(Scale::kMse);
  for (size_t start = 0; start < n; start += block) {
    const size_t end = std::min(n, start + block);
    double square = 0;
    for (size_t i = start; i < end; ++i) square += static_cast<double>(x[i]) * x[i];
    const double limit = (mse ? 1 + 0x1p-12 : 4.0) * std::sqrt(square) + 0x1p-136;
    std::fill(limits + start, limits + end, limit);
  }
}

void append_run(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
                uint64_t payload, uint32_t together) {
  gpu::CodecRun coded = run;
  coded.bucket = static_cast<uint64_t>(config.get("block_size"));
  coded.bits = static_cast<uint8_t>(config.get("bits"));
  coded.own[0] = static_cast<uint8_t>(config.get("scale"));
  coded.meta = payload + kKeyBytes;
  coded.codes = coded.meta + (run.count + coded.bucket - 1) / coded.bucket * sizeof(float);
  coded.tile = static_cast<uint32_t>(
      std::clamp<uint64_t>(together * coded.bucket, gpu::kTile, gpu::kLongestTile));
  coded.tile_buckets = static_cast<uint32_t>(coded.tile / coded.bucket);
  const bool warps = coded.bucket <= gpu::rotation::kMostRows * gpu::kLanes;
  table.append(coded, warps ? run.count / coded.bucket * coded.bucket : 0);
}

}  // namespace cgx::rotation
