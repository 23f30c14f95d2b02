// `bounded` behind the contract of compressors: a payload of container.h, one block after the other.
#include "codec/compressor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>

#include "codec/bounded/bytes.h"
#include "codec/bounded/container.h"
#include "codec/bounded/decode/decoder.h"
#include "codec/bounded/encode/encoder.h"
#include "codec/bounded/maps/order.h"
#include "codec/bounded/range.h"
#include "codec/compressors/list.h"

namespace cgx::bounded {
namespace {

constexpr DTypeSet kFloatTypes{DType::kFloat32,   DType::kFloat64,   DType::kFloat16,
                               DType::kBFloat16,  DType::kComplex32, DType::kComplex64,
                               DType::kComplex128};
constexpr DTypeSet kAllTypes{
    DType::kFloat32, DType::kFloat64,   DType::kFloat16,   DType::kBFloat16,
    DType::kUInt8,   DType::kInt8,      DType::kInt16,     DType::kUInt16,
    DType::kInt32,   DType::kUInt32,    DType::kInt64,     DType::kUInt64,
    DType::kBool,    DType::kComplex32, DType::kComplex64, DType::kComplex128};

bool is_complex(DType dtype) { return kind_of(dtype) == DTypeKind::kComplex; }
DType complex_of(DType real) {
  return real == DType::kFloat16   ? DType::kComplex32
         : real == DType::kFloat32 ? DType::kComplex64
                                   : DType::kComplex128;
}

struct MapsKey {
  DType element;
  BoundKind kind;
  double bound;
  int version;
  bool operator==(const MapsKey&) const = default;
};

// Of types of 16 bits the tables take as long as encoding a block, so the latest ones are kept.
std::shared_ptr<const Maps> maps_for(const MapsKey& key) {
  using Entry = std::pair<MapsKey, std::shared_ptr<const Maps>>;
  constexpr size_t kKept = 8;
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::deque<Entry>;
  {
    const std::lock_guard lock(*mutex);
    for (const Entry& entry : *kept) {
      if (entry.first == key) return entry.second;
    }
  }
  auto made = std::make_shared<const Maps>(key.element, key.kind, key.bound, key.version);
  const std::lock_guard lock(*mutex);
  kept->emplace_front(key, made);
  if (kept->size() > kKept) kept->pop_back();
  return made;
}

class BoundedCompressor final : public Compressor {
 public:
  BoundedCompressor(const CompressorConfig& config, std::shared_ptr<const EntropyCoder> entropy)
      : Compressor(config),
        asked_(config.real("bound")),
        kind_(asked_ == 0 ? BoundKind::kLossless : static_cast<BoundKind>(1 + config.get("kind"))),
        entropy_(std::move(entropy)) {
    if (kind_ == BoundKind::kPointwise && asked_ >= 1) {
      throw ConfigError(str_of("compressor bounded: bound=", config.text("bound"),
                               " is not allowed with kind=pointwise; allowed: below 1"));
    }
  }

  // Whole numbers are lossless.
  DTypeSet dtypes() const override {
    return kind_ == BoundKind::kLossless ? kAllTypes : kFloatTypes;
  }

  PayloadInfo info(std::span<const std::byte> payload) const override {
    const Container header = OpenContainer::read(payload).header;
    PayloadInfo found;
    found.dtype = header.complex ? complex_of(header.element) : header.element;
    found.count = header.values() / (header.complex ? 2 : 1);
    found.shape = header.shape;
    found.bytes = payload.size();
    constexpr const char* kKinds[] = {"lossless", "absolute", "relative", "pointwise"};
    found.kind = kKinds[static_cast<size_t>(header.kind)];
    found.bound = header.bound;
    return found;
  }

  void bound(const void* x, size_t n, DType dtype, double* limits) const override {
    const DType real = real_of(dtype);
    const size_t values = is_complex(dtype) ? 2 * n : n;
    const auto* bytes = static_cast<const std::byte*>(x);
    const double limit = kind_ == BoundKind::kRelative ? range_part(real, bytes, values) : asked_;
    for (size_t i = 0; i < values; ++i) {
      limits[i] = limit;
      if (kind_ != BoundKind::kPointwise) continue;
      limits[i] *= std::fabs(value_at(real, bytes, i));
    }
  }

 private:
  // What a relative bound is for these values.
  double range_part(DType real, const std::byte* x, size_t values) const {
    const double bound = asked_ * finite_range(real, x, values);
    if (!std::isfinite(bound)) {
      throw ConfigError(str_of("compressor bounded: the values have a range of which bound=",
                               config().text("bound"), " parts are more than float64 can hold"));
    }
    return bound;
  }

  size_t most_payload(size_t n, DType dtype) const override {
    Container header;
    header.complex = is_complex(dtype);
    header.shape = {n};
    const uint64_t blocks = header.blocks();
    return Container::most_head(1, blocks) + header.values() * size_of(real_of(dtype)) +
           blocks * Encoder::most_bytes(DType::kBool, 0);
  }

  size_t write(const void* x, size_t n, DType dtype, std::span<std::byte> out) const override {
    Container header;
    header.element = real_of(dtype);
    header.complex = is_complex(dtype);
    header.kind = kind_;
    header.asked = header.bound = asked_;
    header.shape = {n};
    const auto* values = static_cast<const std::byte*>(x);
    if (kind_ == BoundKind::kRelative) {
      header.bound = range_part(header.element, values, header.values());
      // All finite values are equal, or there are none.
      if (header.bound == 0) header.kind = BoundKind::kLossless;
    }
    Encoder encoder(maps_for({header.element, header.kind, header.bound, header.version}));
    const uint64_t count = header.blocks();
    std::vector<std::byte> bytes;  // of all blocks
    std::vector<std::pair<size_t, size_t>> places;
    for (uint64_t k = 0; k < count; ++k) {
      const size_t some = header.values_of(k);
      encoder.place(field::geometry_of(header.shape, k * kBlockValues, some));
      encoder.encode(values, some);
      values += some * size_of(header.element);
      std::vector<std::byte> frame;
      if (encoder.windowed() > 0) {
        encoder.use_windows();
      } else if (entropy_ != nullptr && !encoder.content().empty()) {
        frame = entropy_->compress(encoder.content(),
                                   {.entropy = encoder.entropy(), .packed = encoder.packed()});
      }
      const auto block = encoder.finish(frame);
      const auto before = places.empty() ? std::pair<size_t, size_t>() : places.back();
      const bool same =
          !places.empty() && std::equal(block.begin(), block.end(), bytes.data() + before.first,
                                        bytes.data() + before.second);
      if (same) {
        places.push_back(before);
        continue;
      }
      places.emplace_back(bytes.size(), bytes.size() + block.size());
      bytes.insert(bytes.end(), block.begin(), block.end());
    }
    std::vector<std::span<const std::byte>> blocks;
    for (const auto& [begin, end] : places) blocks.emplace_back(bytes.data() + begin, end - begin);
    const std::vector<std::byte> head = header.write(blocks);
    auto at = std::copy(head.begin(), head.end(), out.begin());
    at = std::copy(bytes.begin(), bytes.end(), at);
    const size_t written = head.size() + bytes.size();
    const size_t padding = header.padding(written);
    std::fill_n(at, padding, std::byte{0});
    return written + padding;
  }

  void read(std::span<const std::byte> payload, const PayloadInfo&, void* y) const override {
    const OpenContainer open = OpenContainer::read(payload);
    const Container& header = open.header;
    const auto maps = [&] {
      try {
        return maps_for({header.element, header.kind, header.bound, header.version});
      } catch (const ConfigError& error) {
        throw PayloadError(error.what());
      }
    }();
    auto* values = static_cast<std::byte*>(y);
    if (header.whole) return read_whole(payload, open, *maps, values);
    Decoder decoder(maps);
    for (uint64_t k = 0; k < header.blocks(); ++k) {
      const OpenBlock block = decoder.open(
          payload.subspan(open.places[k].begin, open.places[k].end - open.places[k].begin),
          header.values_of(k));
      std::vector<std::byte> content;
      if (!block.frame.empty()) {
        if (entropy_ == nullptr) {
          throw ConfigError(str_of("compressor bounded: block ", k,
                                   " of the payload is a frame, which needs an entropy coder"));
        }
        content = entropy_->decompress(block.frame, block.content);
      }
      decoder.decode(block, content, values);
      values += block.n * size_of(header.element);
    }
  }

  // All values are one frame.
  void read_whole(std::span<const std::byte> payload, const OpenContainer& open, const Maps& maps,
                  std::byte* y) const {
    if (entropy_ == nullptr) {
      throw ConfigError("compressor bounded: the payload is a frame, which needs an entropy coder");
    }
    const auto [begin, end] = open.places[0];
    const uint64_t n = open.header.values();
    const auto content = entropy_->decompress(payload.subspan(begin, end - begin),
                                              open.header.whole->content(maps, n));
    open.header.whole->decode(maps, content, n, 0, n, y);
  }

  const double asked_;
  const BoundKind kind_;
  const std::shared_ptr<const EntropyCoder> entropy_;
};

std::shared_ptr<const Compressor> make_bounded(const CompressorConfig& config,
                                               std::shared_ptr<const EntropyCoder> entropy) {
  return std::make_shared<BoundedCompressor>(config, std::move(entropy));
}

}  // namespace
}  // namespace cgx::bounded

namespace cgx {

const CompressorFamily& bounded_compressor() {
  using Kind = Parameter::Kind;
  static const auto* family = new CompressorFamily{
      {
          .name = "bounded",
          .meaning = "Prediction and quantization within a bound, then an entropy coder",
          .parameters = {{.name = "kind",
                          .kind = Kind::kChoice,
                          .fallback = "absolute",
                          .choices = "absolute,relative,pointwise",
                          .meaning = "What the bound is a bound of: the error, the error in parts "
                                     "of the range of all values, or in parts of each value"},
                         {.name = "bound",
                          .kind = Kind::kReal,
                          .fallback = "0.001",
                          .least = 0,
                          .greatest = std::numeric_limits<double>::max(),
                          .meaning = "The bound; 0 is lossless"}},
      },
      // A relative bound needs a range that float64 holds.
      {.make = bounded::make_bounded, .takes_all = false},
  };
  return *family;
}

}  // namespace cgx
