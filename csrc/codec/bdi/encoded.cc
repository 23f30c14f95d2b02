#include <cstring>

#include "base/crc32c.h"
#include "codec/bdi/layout.h"
#include "codec/bdi/payload.h"

namespace cgx::bdi {
namespace {

// Writes numbers one behind the other.
class Head {
 public:
  explicit Head(std::byte* out) : out_(out) {}

  template <typename T>
  void put(T value) {
    std::memcpy(out_, &value, sizeof value);
    out_ += sizeof value;
  }
  std::byte* end() const { return out_; }

 private:
  std::byte* out_;
};

}  // namespace

Encoded::Encoded(const Format& format, const EncoderOptions& options,
                 const std::vector<uint64_t>& shape, const uint32_t* words, const Parallel& threads)
    : format_(format), shape_(shape) {
  check(format);
  const uint64_t count = count_of(shape);
  const uint64_t chunks = chunks_of(format, count);
  const uint64_t step = chunks_of_part(format.batch);
  numbers_.resize(chunks);
  parts_.resize(chunks / step + (chunks % step != 0 ? 1 : 0));
  run_parts(threads, parts_.size(), [&](size_t part) {
    ChunkEncoder encoder(format_, options);
    std::vector<std::byte> bytes;
    const uint64_t last = std::min((part + 1) * step, chunks);
    for (uint64_t chunk = part * step; chunk < last; ++chunk) {
      const uint64_t first = chunk * format.batch;
      const auto some = static_cast<uint32_t>(std::min<uint64_t>(format.batch, count - first));
      numbers_[chunk] = encoder.encode(words + first, some, chunk, bytes);
    }
    parts_[part] = std::move(bytes);
  });
  bytes_ = head_bytes(format_, shape.size()) + table_bytes(format_, chunks) + kChecksumBytes;
  for (const auto& part : parts_) bytes_ += part.size();
}

void Encoded::write(std::byte* out) const {
  Head head(out);
  for (char c : kMagic) head.put(c);
  head.put(kVersion);
  head.put(static_cast<uint8_t>(format_.words));
  head.put(static_cast<uint8_t>(format_.zero_mask ? kZeroMaskFlag : 0));
  head.put(static_cast<uint64_t>(bytes_));
  head.put(static_cast<uint16_t>(format_.batch));
  for (uint32_t scale : {format_.scale_init, format_.scale_base, format_.scale_delta}) {
    head.put(static_cast<uint8_t>(scale));
  }
  for (size_t number : {shape_.size(), format_.immediates.size(), format_.configs.size()}) {
    head.put(static_cast<uint8_t>(number));
  }
  for (uint64_t size : shape_) head.put(size);
  for (uint32_t immediate : format_.immediates) head.put(immediate);
  for (const Config& config : format_.configs) {
    for (uint32_t field : {config.bases, config.base_bits, config.delta_bits}) {
      head.put(static_cast<uint8_t>(field));
    }
  }
  BitWriter table(head.end());
  for (uint8_t number : numbers_) table.put(number, table_width(format_));
  std::byte* at = table.finish();
  for (const auto& part : parts_) {
    if (!part.empty()) std::memcpy(at, part.data(), part.size());
    at += part.size();
  }
  const uint32_t checksum = crc32c(out, static_cast<size_t>(at - out));
  std::memcpy(at, &checksum, sizeof checksum);
}

}  // namespace cgx::bdi
