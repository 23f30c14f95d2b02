// BDI behind the contract of compressors: payloads of payload.h with one configuration of chunks and
// no immediates. Payloads with more of them are read, too.
#include "codec/compressor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/host_device.h"
#include "codec/bdi/layout.h"
#include "codec/bdi/payload.h"
#include "codec/compressors/list.h"

namespace cgx::bdi {
namespace {

constexpr DType kWordTypes[] = {DType::kInt32, DType::kUInt32, DType::kFloat32};  // by Words

class CallingThread final : public Parallel {
 public:
  int threads() const override { return 1; }
  void run(size_t parts, const std::function<void(size_t)>& body) const override {
    for (size_t part = 0; part < parts; ++part) body(part);
  }
};

Format format_of(const CompressorConfig& config) {
  const auto number = [&](const char* name) { return static_cast<uint32_t>(config.get(name)); };
  Format format;
  format.zero_mask = number("zero_mask") != 0;
  format.batch = number("batch_size");
  format.scale_init = number("scale_init");
  format.scale_base = number("scale_base");
  format.scale_delta = number("scale_delta");
  format.configs = {{number("bases"), number("base_bits"), number("delta_bits")}};
  check(format);
  return format;
}

class BdiCompressor final : public Compressor {
 public:
  explicit BdiCompressor(const CompressorConfig& config)
      : Compressor(config),
        format_(format_of(config)),
        options_{config.get("stochastic") != 0, config.get("random_bases") != 0,
                 static_cast<uint64_t>(config.get("seed"))} {}

  DTypeSet dtypes() const override { return {kWordTypes[0], kWordTypes[1], kWordTypes[2]}; }

  // All of a payload is read, as a checksum at its end covers the header.
  PayloadInfo info(std::span<const std::byte> payload) const override {
    const Payload opened(payload.data(), payload.size());
    const Format& format = opened.format();
    PayloadInfo found;
    found.dtype = kWordTypes[static_cast<size_t>(format.words)];
    found.count = opened.words();
    found.shape = opened.shape();
    found.bytes = payload.size();
    if (!format.lossless()) {
      found.kind = "words";
      found.bound = distance_of(format);
    }
    return found;
  }

  void bound(const void* x, size_t n, DType dtype, double* limits) const override {
    const double distance = distance_of(format_);
    const auto* words = static_cast<const uint32_t*>(x);
    for (size_t i = 0; i < n; ++i) {
      limits[i] = dtype == DType::kFloat32 ? limit_of_float(words[i], distance) : distance;
    }
  }

 private:
  // Decoded words lie less than 2^(si + sd) from the words.
  static double distance_of(const Format& format) {
    return std::ldexp(1.0, static_cast<int>(format.scale_init + format.scale_delta)) - 1;
  }

  // The way from a float32 value to the furthest with so near a word, of its sign.
  static double limit_of_float(uint32_t word, double distance) {
    const uint32_t size = word & 0x7fffffffu;
    if (size >= 0x7f800000u || distance == 0) return 0;
    const auto far = static_cast<uint32_t>(std::min(distance, 0x7f7fffffp0 - size));
    const double value = from_bits(size), up = from_bits(size + far);
    const double down = from_bits(size - static_cast<uint32_t>(std::min<double>(distance, size)));
    return std::max(up - value, value - down);
  }

  size_t most_payload(size_t n, DType) const override {
    const Config& config = format_.configs[0];
    const uint64_t chunks = chunks_of(format_, n);
    const auto most_of = [&](uint64_t words) {
      const uint64_t bits = (format_.zero_mask ? words : 0) + width_of(config.bases) +
                            uint64_t{config.bases} * config.base_bits +
                            words * (selector_bits(format_, config.bases) + config.delta_bits);
      return std::max<uint64_t>(4 * words, bytes_of(bits));
    };
    return head_bytes(format_, 1) + table_bytes(format_, chunks) + kChecksumBytes +
           chunks * most_of(format_.batch);
  }

  size_t write(const void* x, size_t n, DType dtype, std::span<std::byte> out) const override {
    Format format = format_;
    format.words = static_cast<Words>(std::find(kWordTypes, std::end(kWordTypes), dtype) -
                                      std::begin(kWordTypes));
    const Encoded encoded(format, options_, {n}, static_cast<const uint32_t*>(x), CallingThread());
    encoded.write(out.data());
    return encoded.bytes();
  }

  void read(std::span<const std::byte> payload, const PayloadInfo&, void* y) const override {
    Payload(payload.data(), payload.size()).decode(static_cast<uint32_t*>(y), CallingThread());
  }

  const Format format_;
  const EncoderOptions options_;
};

std::shared_ptr<const Compressor> make_bdi(const CompressorConfig& config,
                                           std::shared_ptr<const EntropyCoder>) {
  return std::make_shared<BdiCompressor>(config);
}

Parameter bdi_integer(const char* name, const char* fallback, int64_t low, int64_t high,
                      const char* meaning) {
  return {.name = name,
          .kind = Parameter::Kind::kInteger,
          .fallback = fallback,
          .low = low,
          .high = high,
          .meaning = meaning};
}

Parameter bdi_switch(const char* name, const char* fallback, const char* meaning) {
  return {
      .name = name, .kind = Parameter::Kind::kBoolean, .fallback = fallback, .meaning = meaning};
}

}  // namespace
}  // namespace cgx::bdi

namespace cgx {

const CompressorFamily& bdi_compressor() {
  using bdi::bdi_integer, bdi::bdi_switch;
  static const auto* family = new CompressorFamily{
      {
          .name = "bdi",
          .meaning = "Words of 32 bits as a base and a small difference",
          .parameters =
              {
                  bdi_integer("bases", "1", 0, bdi::kMostBases, "Bases of a chunk, at most"),
                  bdi_integer("base_bits", "32", 1, 32, "Bits of a base, behind scale_base"),
                  bdi_integer("delta_bits", "8", 0, 32, "Bits of a difference from a base"),
                  bdi_integer("batch_size", "64", 1, bdi::kMostBatch, "Words of a chunk"),
                  bdi_integer("scale_init", "0", 0, 31, "Low bits of each word that are cut off"),
                  bdi_integer("scale_base", "0", 0, 31, "Low bits of each base that are cut off"),
                  bdi_integer("scale_delta", "0", 0, 31,
                              "Low bits of differences that are cut off"),
                  bdi_switch("zero_mask", "1", "A bit for each word tells zeros"),
                  bdi_switch("stochastic", "0", "Differences are rounded at random"),
                  bdi_switch("random_bases", "0", "Bases are random words of the chunk"),
                  bdi_integer("seed", "0", 0, std::numeric_limits<int64_t>::max(), "Seed of both"),
              },
      },
      {.make = bdi::make_bdi},
  };
  return *family;
}

}  // namespace cgx
