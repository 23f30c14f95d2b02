#include "codec/bdi/payload.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"
#include "codec/bdi/layout.h"

namespace cgx::bdi {
namespace {

template <typename... Args>
[[noreturn]] void refuse(const Args&... args) {
  throw ConfigError(str_of("BDI payload: ", args...));
}

template <typename T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The ones among the first `count` bits.
uint32_t ones(const BitReader& bits, uint32_t count) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < count; i += 32) {
    sum += static_cast<uint32_t>(std::popcount(bits.get(i, std::min(count - i, 32u))));
  }
  return sum;
}

void check_checksum(const std::byte* data, size_t bytes) {
  const auto stored = read<uint32_t>(data + bytes);
  const uint32_t computed = crc32c(data, bytes);
  if (stored != computed) {
    refuse("checksum is ", stored, ", but that of its bytes is ", computed,
           ": it was altered after it was written");
  }
}

// Magic, version, length: what tells a cut payload or one of another kind from an altered one.
void check_frame(const std::byte* data, size_t bytes) {
  constexpr size_t kLeast = kHeaderBytes + kChecksumBytes;
  const size_t magic = std::min(bytes, sizeof kMagic);
  if (magic > 0 && std::memcmp(data, kMagic, magic) != 0) {
    refuse("it does not begin with \"CGXI\": the bytes are of another kind");
  }
  if (bytes < kLeast) refuse("it has ", bytes, " bytes, allowed: ", kLeast, " or more: it was cut");
  if (const auto version = read<uint16_t>(data + kVersionAt); version != kVersion) {
    refuse("version is ", version, ", allowed: ", kVersion);
  }
  if (const auto said = read<uint64_t>(data + kBytesAt); said != bytes) {
    refuse("it has ", bytes, " bytes, and its header says ", said,
           said > bytes ? ": it was cut" : ": something follows it");
  }
}

}  // namespace

Payload::Payload(const std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {
  check_frame(data, bytes);
  end_ = bytes - kChecksumBytes;
  check_checksum(data, end_);
  read_head();
  find_parts();
}

void Payload::read_head() {
  auto byte = [&](size_t at) { return static_cast<uint8_t>(data_[at]); };
  format_.words = static_cast<Words>(byte(kWordsAt));
  if (byte(kFlagsAt) > kZeroMaskFlag) refuse("flags are ", byte(kFlagsAt) + 0, ", allowed: 0, 1");
  format_.zero_mask = byte(kFlagsAt) != 0;
  format_.batch = read<uint16_t>(data_ + kBatchAt);
  format_.scale_init = byte(kScalesAt);
  format_.scale_base = byte(kScalesAt + 1);
  format_.scale_delta = byte(kScalesAt + 2);
  shape_.resize(byte(kDimsAt));
  format_.immediates.resize(byte(kImmediatesAt));
  format_.configs.resize(byte(kConfigsAt));
  table_ = head_bytes(format_, shape_.size());
  if (table_ > end_) {
    refuse("its header of ", table_, " bytes does not fit into it: ", end_, " bytes");
  }
  const std::byte* at = data_ + kHeaderBytes;
  for (uint64_t& size : shape_) size = read<uint64_t>(at), at += sizeof size;
  for (uint32_t& immediate : format_.immediates) {
    immediate = read<uint32_t>(at), at += sizeof immediate;
  }
  for (Config& config : format_.configs) {
    config = {static_cast<uint8_t>(at[0]), static_cast<uint8_t>(at[1]),
              static_cast<uint8_t>(at[2])};
    at += kConfigBytes;
  }
  try {
    check(format_);
    words_ = count_of(shape_);
  } catch (const ConfigError& error) {
    refuse(error.what());
  }
  // Each word takes a bit at least.
  if (words_ > 8 * end_) {
    refuse("its shape has ", words_, " words, more than its ", bytes_, " bytes can hold");
  }
  chunks_ = chunks_of(format_, words_);
  first_ = table_ + table_bytes(format_, chunks_);
  if (first_ > end_) refuse("its table of ", chunks_, " chunks does not fit into it");
}

void Payload::find_parts() {
  const BitReader table(data_ + table_, first_ - table_);
  const uint64_t used = chunks_ * table_width(format_);
  if (table.get(used, static_cast<uint32_t>(table.bits() - used)) != 0) {
    refuse("the table does not end with zeros");
  }
  const uint64_t step = chunks_of_part(format_.batch);
  uint64_t at = first_, number = 0, next = 0;
  for (; number < chunks_; ++number) {
    if (number == next) parts_.push_back(at), next += step;
    at += look(number, at).bytes;
  }
  if (at != end_) refuse(end_ - at, " bytes follow the last chunk, allowed: 0");
}

// A chunk that begins at a place, which lies inside. Its end does, too.
Chunk Payload::look(uint64_t number, uint64_t at) const {
  Chunk chunk;
  const uint32_t width = table_width(format_);
  const BitReader table(data_ + table_, first_ - table_);
  chunk.number = static_cast<uint8_t>(table.get(number * width, width));
  if (chunk.number > format_.configs.size()) {
    refuse("configuration of chunk ", number, " is ", chunk.number + 0, ", allowed: 0 to ",
           format_.configs.size());
  }
  chunk.words =
      static_cast<uint32_t>(std::min<uint64_t>(format_.batch, words_ - number * format_.batch));
  chunk.at = at;
  chunk.nonzero = chunk.words;
  const BitReader bits(data_ + at, end_ - at);
  auto check_end = [&](uint64_t chunk_bits) {
    if (chunk_bits > bits.bits()) {
      refuse("chunk ", number, " of ", chunks_, " has ", bytes_of(chunk_bits),
             " bytes or more, but only ", end_ - at, " are left");
    }
  };
  if (chunk.number == kRaw) {
    chunk.bytes = sizeof(uint32_t) * chunk.words;
    check_end(8 * chunk.bytes);
    return chunk;
  }
  const Config& config = format_.configs[chunk.number - 1u];
  const uint32_t mask_bits = format_.zero_mask ? chunk.words : 0;
  const uint32_t used_bits = width_of(config.bases);
  check_end(mask_bits + used_bits);
  if (format_.zero_mask) chunk.nonzero = ones(bits, chunk.words);
  chunk.used = bits.get(mask_bits, used_bits);
  if (chunk.used > config.bases) {
    refuse("chunk ", number, " uses ", chunk.used, " bases, allowed: 0 to ", config.bases);
  }
  if (chunk.nonzero > 0 && format_.immediates.size() + chunk.used == 0) {
    refuse("chunk ", number, " has ", chunk.nonzero, " words and neither a base nor an immediate");
  }
  const uint64_t word_bits = selector_bits(format_, chunk.used) + config.delta_bits;
  const uint64_t chunk_bits =
      mask_bits + used_bits + uint64_t{chunk.used} * config.base_bits + chunk.nonzero * word_bits;
  check_end(chunk_bits);
  chunk.bytes = bytes_of(chunk_bits);
  return chunk;
}

// Memory for the chunks of one thread.
class Payload::Decoder {
 public:
  explicit Decoder(const Payload& payload)
      : payload_(payload),
        format_(payload.format_),
        selectors_(format_.batch),
        deltas_(format_.batch),
        values_(format_.batch + 1) {
    std::copy(format_.immediates.begin(), format_.immediates.end(), bases_);
  }

  void decode(uint64_t number, const Chunk& chunk, uint32_t* out) {
    const std::byte* in = payload_.data_ + chunk.at;
    if (chunk.number == kRaw) {
      std::memcpy(out, in, chunk.bytes);
      return;
    }
    const Config& config = format_.configs[chunk.number - 1u];
    const BitReader bits(in, payload_.end_ - chunk.at);
    uint64_t at = format_.zero_mask ? chunk.words : 0;
    at += width_of(config.bases);
    read_bases(number, bits, &at, config, chunk.used);
    const uint32_t width = selector_bits(format_, chunk.used);
    if (width > 0) bits.get_many(at, width, selectors_.data(), chunk.nonzero);
    at += uint64_t{chunk.nonzero} * width;
    bits.get_many(at, config.delta_bits, deltas_.data(), chunk.nonzero);
    at += uint64_t{chunk.nonzero} * config.delta_bits;
    if (bits.get(at, static_cast<uint32_t>(8 * chunk.bytes - at)) != 0) {
      refuse("chunk ", number, " does not end with zeros");
    }
    add(number, chunk, width);
    if (format_.zero_mask) {
      spread(bits, chunk.words, out);
    } else {
      std::copy_n(values_.data(), chunk.words, out);
    }
  }

 private:
  void read_bases(uint64_t number, const BitReader& bits, uint64_t* at, const Config& config,
                  uint32_t used) {
    uint32_t* bases = bases_ + format_.immediates.size();
    for (uint32_t k = 0; k < used; ++k, *at += config.base_bits) {
      const uint64_t base = uint64_t{bits.get(*at, config.base_bits)} << format_.scale_base;
      if (base > format_.top()) {
        refuse("base ", k, " of chunk ", number, " is ", base, ", allowed: 0 to ", format_.top());
      }
      bases[k] = static_cast<uint32_t>(base);
    }
  }

  // Bases and deltas to values_; what the bits of a word cannot hold is found in the sum of all.
  void add(uint64_t number, const Chunk& chunk, uint32_t width) {
    const uint32_t scale = format_.scale_delta, init = format_.scale_init;
    uint64_t all = 0;
    if (width == 0) {
      const uint64_t base = bases_[0];
      for (uint32_t i = 0; i < chunk.nonzero; ++i) {
        const uint64_t sum = base + (uint64_t{deltas_[i]} << scale);
        all |= sum;
        values_[i] = static_cast<uint32_t>(sum) << init;
      }
    } else {
      uint32_t highest = 0;
      for (uint32_t i = 0; i < chunk.nonzero; ++i) {
        const uint32_t selector = selectors_[i];
        highest = std::max(highest, selector);
        const uint64_t sum = bases_[selector] + (uint64_t{deltas_[i]} << scale);
        all |= sum;
        values_[i] = static_cast<uint32_t>(sum) << init;
      }
      const size_t bases = format_.immediates.size() + chunk.used;
      if (highest >= bases) {
        refuse("a selector of chunk ", number, " is ", highest, ", allowed: 0 to ", bases - 1);
      }
    }
    if (all > format_.top()) {
      refuse("a base and a delta of chunk ", number, " add up to more than ", format_.top());
    }
  }

  // The values, each to the place of a one in the mask, with zeros between them.
  void spread(const BitReader& bits, uint32_t words, uint32_t* out) const {
    const uint32_t* value = values_.data();
    for (uint32_t i = 0; i < words;) {
      const uint32_t some = std::min(words - i, 32u);
      uint32_t mask = bits.get(i, some);
      if (mask == 0xffffffffu) {
        std::copy_n(value, 32, out + i);
        value += 32;
        i += 32;
        continue;
      }
      for (uint32_t k = 0; k < some; ++k, ++i, mask >>= 1) {
        const uint32_t one = mask & 1;
        out[i] = *value & (0 - one);  // values_ has one more, which is read behind the last
        value += one;
      }
    }
  }

  const Payload& payload_;
  const Format& format_;
  uint32_t bases_[128] = {};  // as many as seven bits of a selector can say
  std::vector<uint32_t> selectors_;
  std::vector<uint32_t> deltas_;
  std::vector<uint32_t> values_;
};

void Payload::decode(uint32_t* out, const Parallel& threads) const {
  const uint64_t step = chunks_of_part(format_.batch);
  run_parts(threads, parts_.size(), [&](size_t part) {
    Decoder decoder(*this);
    const uint64_t last = std::min((part + 1) * step, chunks_);
    uint64_t at = parts_[part];
    for (uint64_t number = part * step; number < last; ++number) {
      const Chunk chunk = look(number, at);
      decoder.decode(number, chunk, out + number * format_.batch);
      at += chunk.bytes;
    }
  });
}

}  // namespace cgx::bdi
