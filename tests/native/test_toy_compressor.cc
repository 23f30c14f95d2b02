// A new compressor needs its declaration and one line: here add_compressor(). The contract, the list,
// its configurations as text and hash, and the conformance suite take it without knowing it.
#include <cstring>

#include "base/crc32c.h"
#include "check.h"
#include "codec/choice.h"
#include "codec/compressor.h"

namespace cgx::native {
namespace {

// Runs of equal bytes of uint8 values: a header (magic, number of values, CRC-32C of the rest), then pairs
// of a length and a value.
class ToyRuns final : public Compressor {
 public:
  explicit ToyRuns(const CompressorConfig& config)
      : Compressor(config), longest_(static_cast<size_t>(config.get("longest"))) {}

  DTypeSet dtypes() const override { return {DType::kUInt8, DType::kBool}; }

  PayloadInfo info(std::span<const std::byte> payload) const override {
    const auto [magic, type, count, crc] = header_of(payload);
    const auto body = payload.subspan(sizeof(Header));
    if (magic != kMagic || crc != checksum(type, count, body)) {
      throw ConfigError("the toy's payload was altered");
    }
    PayloadInfo found;
    found.dtype = type == 0 ? DType::kUInt8 : DType::kBool;
    found.count = count;
    found.shape = {count};
    found.bytes = payload.size();
    return found;
  }

  void bound(const void*, size_t n, DType, double* limits) const override {
    std::fill(limits, limits + n, 0.0);
  }

 private:
  struct Header {
    uint32_t magic, type, count, crc;
  };
  static constexpr uint32_t kMagic = 0x59544f54;

  static Header header_of(std::span<const std::byte> payload) {
    Header header;
    if (payload.size() < sizeof header) throw ConfigError("the toy's payload is cut");
    std::memcpy(&header, payload.data(), sizeof header);
    return header;
  }
  static uint32_t checksum(uint32_t type, uint32_t count, std::span<const std::byte> body) {
    return crc32c(body.data(), body.size()) ^ (type * 0x9e3779b9u + count);
  }

  size_t most_payload(size_t n, DType) const override { return sizeof(Header) + 2 * n; }

  size_t write(const void* x, size_t n, DType dtype, std::span<std::byte> out) const override {
    const auto* values = static_cast<const std::byte*>(x);
    size_t at = sizeof(Header);
    for (size_t i = 0, end = 0; i < n; i = end) {
      while (end < n && values[end] == values[i] && end - i < longest_) ++end;
      out[at++] = static_cast<std::byte>(end - i);
      out[at++] = values[i];
    }
    const auto count = static_cast<uint32_t>(n);
    const uint32_t type = dtype == DType::kBool ? 1 : 0;
    const Header header{kMagic, type, count,
                        checksum(type, count, out.subspan(sizeof header, at - sizeof header))};
    std::memcpy(out.data(), &header, sizeof header);
    return at;
  }

  void read(std::span<const std::byte> payload, const PayloadInfo& found, void* y) const override {
    auto* to = static_cast<std::byte*>(y);
    uint64_t left = found.count;
    for (size_t at = sizeof(Header); at + 1 < payload.size(); at += 2) {
      const auto length = static_cast<uint8_t>(payload[at]);
      if (length > left) throw ConfigError("the toy's payload has too many values");
      std::memset(to, static_cast<int>(payload[at + 1]), length);
      to += length;
      left -= length;
    }
    if (left != 0) throw ConfigError("the toy's payload has too few values");
  }

  const size_t longest_;
};

std::shared_ptr<const Compressor> make_runs(const CompressorConfig& config,
                                            std::shared_ptr<const EntropyCoder>) {
  return std::make_shared<ToyRuns>(config);
}

const CompressorFamily& toy_runs() {
  static const CompressorFamily family{
      {.name = "toy_runs",
       .meaning = "Lengths of runs of equal values",
       .parameters = {{.name = "longest",
                       .kind = Parameter::Kind::kInteger,
                       .fallback = "255",
                       .low = 1,
                       .high = 255,
                       .meaning = "Values of a run, at most"}}},
      {.make = make_runs},
  };
  return family;
}

// Before main(), so that all tests of this program have it.
const bool added = [] {
  add_compressor(toy_runs());
  return true;
}();

}  // namespace

TEST(toy_compressor_is_found_by_its_name) {
  CHECK(added && contains(compressors().names(), "toy_runs"));
  const auto runs = make_compressor(compressors().parse("toy_runs longest=4"), nullptr);
  CHECK(runs->describe() == "toy_runs longest=4");
  const uint8_t x[] = {7, 7, 7, 7, 7, 7, 1, 2, 2};
  std::vector<std::byte> out(runs->most_bytes(9, DType::kUInt8));
  CHECK(runs->compress(x, 9, DType::kUInt8, out) == 16 + 2 * 4);
  uint8_t y[9];
  runs->decompress({out.data(), 24}, y, 9, DType::kUInt8);
  CHECK(std::memcmp(x, y, 9) == 0);
  const std::string text = error_of<ConfigError>([] { compressors().parse("toy_runs longest=0"); });
  CHECK(text ==
            "compressor toy_runs: longest='0' is not allowed; longest takes integers from 1 to 255",
        text);
}

TEST(toy_compressor_is_no_option_of_a_group) {
  for (const Parameter& p : codec_settings()) CHECK(p.name != "longest");
  CHECK(!contains(codec_names(), "toy_runs"));
}

TEST(compressors_of_one_name_are_refused) {
  CHECK(contains(error_of<ConfigError>([] { add_compressor(toy_runs()); }),
                 "compressor 'toy_runs' is there already"));
}

}  // namespace cgx::native
