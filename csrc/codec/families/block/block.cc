// `block`: numbers of a few bits, blocks of which share a scale: the MX formats, and fp8 by blocks.
//
//   scales    of each block: a byte, the power of two 2^(byte - 127), 255 for NaN; or float32, little-endian
//   codes     a stream of codes (codec/formats/streams.h) of the values divided by their block's scale
//
// The last block may be shorter. Decoding gives what the cast to the same format gives (codec/casts/block).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/float_mode.h"
#include "codec/cast.h"
#include "codec/codec.h"
#include "codec/families/block/loops.h"
#include "codec/families/float/parameters.h"
#include "codec/families/list.h"
#include "codec/formats/bounds.h"
#include "codec/formats/gpu/packed.h"
#include "codec/formats/presets.h"
#include "codec/formats/scales.h"
#include "codec/formats/streams.h"
#include "codec/gpu/run_table.h"
#include "codec/ops/convert.h"
#include "codec/ops/finite.h"

namespace cgx {
namespace {

static_assert(std::endian::native == std::endian::little, "scales are written as they lie");

using formats::Blocks;

constexpr double kMost = std::numeric_limits<float>::max();

/// The cast of that name, with the codec's roundings.
Blocks blocks_of(const CodecConfig& config) {
  const std::string format = config.text("format");
  for (const formats::Preset& preset : formats::presets()) {
    if (format != preset.name) continue;
    CastConfig cast = casts().parse(preset.text);
    for (const char* name : {"scale_rounding", "rounding", "random_bits"}) {
      cast.set(name, config.text(name));
    }
    return formats::blocks_of(cast);
  }
  throw ConfigError(str_of("block: format=", format, " is no preset"));
}

class BlockCodec final : public Codec {
 public:
  BlockCodec(const CodecConfig& config, const Blocks& blocks)
      : Codec(config),
        blocks_(blocks),
        shape_(blocks::wire_shape_of(blocks.element, blocks.scale, blocks.rounding, blocks.size)),
        seed_(static_cast<uint64_t>(config.get("seed"))) {}

  int bits() const override { return shape_.coder.bits; }
  uint64_t seed() const override {
    return blocks_.element.rounding == formats::Rounding::kStochastic ? seed_ : 0;
  }
  size_t granule() const override { return shape_.size; }
  size_t block() const override { return shape_.size; }
  PayloadSize payload_size(DType) const override {
    return {.bits = static_cast<size_t>(shape_.coder.bits),
            .bucket = shape_.size,
            .bucket_bytes = shape_.scale_bytes()};
  }

  void encode(const void* x, DType x_dtype, DType dtype, size_t count, size_t first, size_t n,
              RandomKey key, uint64_t index, std::byte* payload) const override {
    check_part(first, n, count);
    if (x_dtype != DType::kFloat32 && x_dtype != dtype) {
      throw ConfigError(
          str_of("x_dtype is ", name_of(x_dtype), ", allowed: float32 or ", name_of(dtype)));
    }
    const auto* in = static_cast<const std::byte*>(x);
    std::byte* codes = payload + codes_at(count);
    FloatMode mode;
    float values[blocks::kChunk];
    for (size_t i = 0; i < n; i += blocks::kChunk) {
      const size_t take = std::min(blocks::kChunk, n - i);
      to_float(in + i * size_of(x_dtype), x_dtype, take, values);
      std::byte* scales = payload + (first + i) / shape_.size * shape_.scale_bytes();
      blocks::wire_loops().divide(shape_, values, take, scales);
      formats::encode(shape_.coder, values, take, key, index + first + i,
                      codes + shape_.coder.bytes(first + i));
    }
  }

  void decode(const std::byte* payload, DType, size_t count, size_t first, size_t n, float* y,
              bool add) const override {
    check_part(first, n, count);
    const std::byte* codes = payload + codes_at(count);
    FloatMode mode;
    float values[blocks::kChunk];
    for (size_t i = 0; i < n; i += blocks::kChunk) {
      const size_t take = std::min(blocks::kChunk, n - i);
      formats::decode(shape_.coder, codes + shape_.coder.bytes(first + i), take, values, false);
      const std::byte* scales = payload + (first + i) / shape_.size * shape_.scale_bytes();
      blocks::wire_loops().multiply[add ? 1 : 0](shape_, values, take, scales, y + i);
    }
  }

  // A number that rounded up may be beyond float32, times its scale.
  bool holds_finite(const std::byte* payload, DType dtype, size_t count) const override {
    float values[blocks::kChunk];
    for (size_t i = 0; i < count; i += blocks::kChunk) {
      const size_t take = std::min(blocks::kChunk, count - i);
      if (!may_overflow(payload, i, take)) continue;
      decode(payload, dtype, count, i, take, values, false);
      if (!all_finite(values, DType::kFloat32, take)) return false;
    }
    return true;
  }

 private:
  // Whether one of the scales of these values, times the largest number, is beyond float32.
  bool may_overflow(const std::byte* payload, size_t first, size_t n) const {
    for (size_t b = first / shape_.size; b * shape_.size < first + n; ++b) {
      float scale;
      if (shape_.wide) {
        std::memcpy(&scale, payload + b * sizeof scale, sizeof scale);
      } else {
        scale = blocks::scale_of_byte(static_cast<uint32_t>(payload[b]));
      }
      const double most = static_cast<double>(scale) * blocks_.element.format.largest();
      if (!(most <= kMost)) return true;
    }
    return false;
  }

  size_t codes_at(size_t count) const {
    const size_t whole = count / shape_.size;
    return (whole + (whole * shape_.size < count ? 1 : 0)) * shape_.scale_bytes();
  }

  const Blocks blocks_;
  const blocks::WireShape shape_;
  const uint64_t seed_;
};

std::shared_ptr<const Codec> make(const CodecConfig& config) {
  return std::make_shared<BlockCodec>(config, blocks_of(config));
}

// Of the element, at the block's scale; of a value that saturates, what is beyond the largest number. The
// quotient and the product may each be rounded, where they are subnormal or the scale is no power of two.
void bound(const CodecConfig& config, DType, const float* x, size_t n, double* limits) {
  const Blocks blocks = blocks_of(config);
  const formats::ScaleRule rule = formats::scale_rule_of(blocks.element.format, blocks.rounding);
  const double largest = blocks.element.format.largest();
  for (size_t start = 0; start < n; start += blocks.size) {
    const size_t end = std::min(n, start + blocks.size);
    float amax = 0;
    for (size_t i = start; i < end; ++i) amax = std::max(amax, std::fabs(x[i]));
    const double scale =
        blocks.scale == formats::Scale::kE8m0
            ? static_cast<double>(formats::power_of_two(formats::power_of_scale(rule, amax)))
            : static_cast<double>(formats::divisor_of(rule, amax));
    for (size_t i = start; i < end; ++i) {
      const double magnitude = std::fabs(static_cast<double>(x[i])), quotient = magnitude / scale;
      const double error =
          quotient > largest ? quotient - largest : formats::error_bound(blocks.element, quotient);
      limits[i] = error * scale + magnitude * 0x1p-22 + scale * 0x1p-148 + 0x1p-149;
      // Rounded up, it may be beyond float32.
      if (magnitude + limits[i] > kMost) limits[i] = std::numeric_limits<double>::infinity();
    }
  }
}

void gpu_runs(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run, DType,
              uint64_t payload) {
  const Blocks blocks = blocks_of(config);
  const bool wide = blocks.scale == formats::Scale::kFloat32;
  gpu::CodecRun coded = run;
  coded.bits = static_cast<uint8_t>(blocks.element.format.bits());
  coded.bucket = blocks.size;
  coded.meta = payload;
  coded.codes = payload + (run.count + blocks.size - 1) / blocks.size * (wide ? sizeof(float) : 1);
  coded.tile = gpu::kTile;
  coded.tile_buckets = static_cast<uint32_t>(gpu::kTile / blocks.size);
  gpu::coding::pack({blocks.element, blocks.scale, blocks.rounding}, coded);
  table.append(coded);
}

}  // namespace

const Family& block_family() {
  static const auto* family = new Family{
      {
          .name = "block",
          .meaning = "Numbers of a few bits, blocks of which share a scale: the MX formats",
          .parameters = rounded::block_parameters(),
          .python = "Block",
          .doc = "Blocks of 32 consecutive values of a layer share a power of two, a byte on the "
                 "wire; of\n``fp8_block128`` blocks of 128 share a float32. The decoded values "
                 "are those of the cast of the same\nname in ``torch_cgx.emulate``. A block with "
                 "a NaN or an Inf decodes to NaN and affects no other block.\nZeros stay zeros. "
                 "nvfp4 is not among the formats: it needs a scale of the whole tensor, of which "
                 "a\ncodec sees runs.",
      },
      {
          .id = kBlockFamily,
          .make = make,
          .bound = bound,
          .gpu_runs = gpu_runs,
          .keeps_zeros = true,
      },
  };
  return *family;
}

}  // namespace cgx
