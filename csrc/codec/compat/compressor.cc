// The format of cuda_float_compress behind the contract of compressors: twelve bytes (magic, number of
// values, step), then one frame of the entropy coder with the words of cuda_float_compress.h.
#include "codec/compressor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "codec/compat/cuda_float_compress.h"
#include "codec/compressors/list.h"

namespace cgx::cuda_float_compress {
namespace {

constexpr uint32_t kMagic = 0x00010203;
constexpr size_t kHeaderBytes = 12;
// Of max_error: half of the smallest and of the largest step.
constexpr double kLeastBound = 0x1p-127, kMostBound = (2 - 0x1p-23) * 0x1p126;

template <typename T>
T value_in(std::span<const std::byte> payload, size_t at) {
  T value;
  std::memcpy(&value, payload.data() + at, sizeof value);
  return value;
}

class CudaFloatCompressor final : public Compressor {
 public:
  CudaFloatCompressor(const CompressorConfig& config, std::shared_ptr<const EntropyCoder> entropy)
      : Compressor(config), max_error_(config.real("max_error")), entropy_(std::move(entropy)) {}

  DTypeSet dtypes() const override { return {DType::kFloat32}; }

  PayloadInfo info(std::span<const std::byte> payload) const override {
    if (payload.size() < kHeaderBytes) {
      throw ConfigError(
          str_of("the payload has ", payload.size(), " bytes, fewer than its header"));
    }
    const auto magic = value_in<uint32_t>(payload, 0);
    const auto count = value_in<uint32_t>(payload, 4);
    const auto step = value_in<float>(payload, 8);
    if (magic != kMagic) {
      throw ConfigError(str_of("the payload starts with ", magic, ", not with ", kMagic));
    }
    if (count > kMostValues) {
      throw ConfigError(
          str_of("the payload claims ", count, " values, allowed: ", kMostValues, " at most"));
    }
    if (!(step > 0) || !std::isfinite(step)) {
      throw ConfigError(str_of("the payload's step is ", step, ", allowed: finite and above 0"));
    }
    PayloadInfo found;
    found.count = count;
    found.shape = {count};
    found.bytes = payload.size();
    found.kind = "absolute";
    found.bound = static_cast<double>(step) / 2;  // the header has the step alone
    return found;
  }

  void bound(const void*, size_t n, DType, double* limits) const override {
    std::fill(limits, limits + n, max_error_);
  }

 private:
  size_t most_payload(size_t n, DType) const override {
    return kHeaderBytes + entropy_->most_bytes(4 * raw_words(n));
  }

  size_t write(const void* x, size_t n, DType, std::span<std::byte> out) const override {
    if (n > kMostValues) {
      throw ConfigError(str_of(describe(), ": x has ", n, " values, allowed: ", kMostValues));
    }
    const auto* values = static_cast<const float*>(x);
    std::vector<uint32_t> raw(raw_words(n));
    auto step = static_cast<float>(2 * max_error_);
    size_t misfit = misfit_of(values, n, step, raw.data());
    if (misfit < n) {
      step = smaller_step(values, n, step);
      misfit = misfit_of(values, n, step, raw.data());
    }
    if (misfit < n) {
      throw ConfigError(str_of(describe(), ": value ", misfit, " is ", values[misfit],
                               ", which this format cannot bring within the bound"));
    }
    const auto frame = entropy_->compress(std::as_bytes(std::span(raw)), {.framed = true});
    const auto count = static_cast<uint32_t>(n);
    std::memcpy(out.data(), &kMagic, 4);
    std::memcpy(out.data() + 4, &count, 4);
    std::memcpy(out.data() + 8, &step, 4);
    std::copy(frame.begin(), frame.end(), out.begin() + kHeaderBytes);
    return kHeaderBytes + frame.size();
  }

  void read(std::span<const std::byte> payload, const PayloadInfo& found, void* y) const override {
    const auto n = static_cast<size_t>(found.count);
    const std::vector<std::byte> content =
        entropy_->decompress(payload.subspan(kHeaderBytes), 4 * raw_words(n));
    std::vector<uint32_t> raw(raw_words(n));
    if (!content.empty()) std::memcpy(raw.data(), content.data(), content.size());
    decode(raw.data(), n, value_in<float>(payload, 8), static_cast<float*>(y));
  }

  // The first value that this step does not bring within the bound; n: none.
  size_t misfit_of(const float* x, size_t n, float step, uint32_t* raw) const {
    const Misfits found = encode(x, n, step, max_error_, false, raw);
    return std::min(found.range, found.bound);
  }

  float smaller_step(const float* x, size_t n, float step) const {
    float largest = 0;
    const size_t first = first_out_of_range(x, n, step, &largest);
    if (first < n) {
      throw ConfigError(str_of(describe(), ": value ", first, " is ", x[first],
                               ", allowed: finite values below 2^31 steps, ",
                               0x1p31 * static_cast<double>(step)));
    }
    return exact_step(max_error_, largest);
  }

  const double max_error_;
  const std::shared_ptr<const EntropyCoder> entropy_;
};

std::shared_ptr<const Compressor> make_compat(const CompressorConfig& config,
                                              std::shared_ptr<const EntropyCoder> entropy) {
  return std::make_shared<CudaFloatCompressor>(config, std::move(entropy));
}

}  // namespace
}  // namespace cgx::cuda_float_compress

namespace cgx {

const CompressorFamily& cuda_float_compress_compressor() {
  namespace format = cuda_float_compress;
  static const auto* family = new CompressorFamily{
      {
          .name = "cuda_float_compress",
          .meaning = "The format of cuda_float_compress 0.2.3: a grid, differences, shuffled bits",
          .parameters = {{.name = "max_error",
                          .kind = Parameter::Kind::kReal,
                          .fallback = "0.001",
                          .least = format::kLeastBound,
                          .greatest = format::kMostBound,
                          .meaning = "The largest |x - y|"}},
      },
      // The header has no checksum: another step decodes to other values.
      {.make = format::make_compat,
       .needs_entropy = true,
       .detects_changes = false,
       .takes_all = false},
  };
  return *family;
}

}  // namespace cgx
