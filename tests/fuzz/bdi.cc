#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "check.h"
#include "codec/bdi/layout.h"
#include "codec/bdi/payload.h"
#include "targets.h"

namespace cgx::native {
namespace {

class OneThread final : public Parallel {
 public:
  int threads() const override { return 1; }
  void run(size_t parts, const std::function<void(size_t)>& body) const override {
    for (size_t part = parts; part-- > 0;) body(part);
  }
};

using Bytes = std::vector<uint8_t>;

const std::byte* start_of(const Bytes& bytes) {
  return reinterpret_cast<const std::byte*>(bytes.data());
}

// Length and checksum that fit, so that the checks behind these are reached.
void sign(Bytes& bytes) {
  if (bytes.size() < bdi::kHeaderBytes + bdi::kChecksumBytes) return;
  const uint64_t size = bytes.size();
  std::memcpy(bytes.data(), bdi::kMagic, sizeof bdi::kMagic);
  std::memcpy(bytes.data() + bdi::kVersionAt, &bdi::kVersion, sizeof bdi::kVersion);
  std::memcpy(bytes.data() + bdi::kBytesAt, &size, sizeof size);
  const size_t end = bytes.size() - bdi::kChecksumBytes;
  const uint32_t checksum = crc32c(bytes.data(), end);
  std::memcpy(bytes.data() + end, &checksum, sizeof checksum);
}

// Memory of exactly the size that a reader may touch.
void read(const Bytes& bytes) {
  auto memory = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(memory.get(), bytes.data(), bytes.size());
  try {
    const bdi::Payload payload(memory.get(), bytes.size());
    CHECK(payload.words() <= 8 * bytes.size(), payload.words(), " words in ", bytes.size());
    uint64_t words = 0, chunks = 0;
    payload.for_each([&](const bdi::Chunk& chunk) { words += chunk.words, ++chunks; });
    CHECK(words == payload.words() && chunks == payload.chunks());
    auto out = std::make_unique<uint32_t[]>(payload.words());
    payload.decode(out.get(), OneThread{});
  } catch (const ConfigError& error) {
    CHECK(contains(error.what(), "BDI payload: "), error.what());
  }
}

bdi::Format take_format(Input& input) {
  bdi::Format format;
  format.words = static_cast<bdi::Words>(input.below(3));
  format.zero_mask = input.flip();
  format.batch = static_cast<uint32_t>(1 + input.below(input.flip() ? 100 : bdi::kMostBatch));
  const bool lossy = input.flip();
  auto scale = [&](uint32_t most) {
    return lossy ? static_cast<uint32_t>(input.below(most + 1)) : 0;
  };
  format.scale_init = scale(31);
  format.scale_base = scale(31 - format.scale_init);
  format.scale_delta = scale(31 - format.scale_init);
  for (size_t left = input.below(4); left > 0; --left) {
    const uint32_t immediate = input.take<uint32_t>() & format.top();
    const auto& all = format.immediates;
    if (std::find(all.begin(), all.end(), immediate) == all.end()) {
      format.immediates.push_back(immediate);
    }
  }
  for (size_t left = 1 + input.below(4); left > 0; --left) {
    bdi::Config config;
    config.bases = static_cast<uint32_t>(input.below(bdi::kMostBases + 1));
    config.base_bits = static_cast<uint32_t>(1 + input.below(32));
    config.delta_bits = static_cast<uint32_t>(input.below(33));
    if (!format.zero_mask && config.delta_bits == 0) config.delta_bits = 1;
    format.configs.push_back(config);
  }
  return format;
}

// Words that lie close to the one before, as far as the input says.
std::vector<uint32_t> take_words(Input& input, size_t count) {
  std::vector<uint32_t> words(count);
  uint32_t word = 0;
  for (uint32_t& next : words) {
    const uint8_t step = input.take<uint8_t>();
    word = step == 255 ? input.take<uint32_t>() : word + step - 64;
    next = step % 8 == 7 ? 0 : word;
  }
  return words;
}

void check_bound(const bdi::Format& format, uint32_t word, uint32_t back) {
  const uint64_t error = std::max(word, back) - std::min(word, back);
  CHECK(error < uint64_t{1} << (format.scale_init + format.scale_delta), word, " became ", back);
  CHECK(bdi::same_kind(format.words, word, back), word, " became ", back);
}

void round_trip(Input& input) {
  const bdi::Format format = take_format(input);
  const bdi::EncoderOptions options{input.flip(), input.flip(), input.take<uint64_t>()};
  const std::vector<uint32_t> words = take_words(input, input.below(600));
  const OneThread one;
  const bdi::Encoded encoded(format, options, {words.size()}, words.data(), one);
  Bytes bytes(encoded.bytes());
  encoded.write(reinterpret_cast<std::byte*>(bytes.data()));
  const bdi::Payload payload(start_of(bytes), bytes.size());
  CHECK(payload.words() == words.size());
  std::vector<uint32_t> back(words.size());
  payload.decode(back.data(), one);
  for (size_t i = 0; i < words.size(); ++i) check_bound(format, words[i], back[i]);
  for (size_t changes = input.below(6); changes > 0; --changes) {
    bytes[input.below(bytes.size())] ^= input.take<uint8_t>();
  }
  if (input.below(4) == 0) bytes.resize(input.below(bytes.size() + 1));
  if (input.flip()) sign(bytes);
  read(bytes);
}

}  // namespace

void fuzz_bdi(const uint8_t* data, size_t size) {
  Input input(data, size);
  const size_t kind = input.below(4);
  if (kind > 1) return round_trip(input);
  Bytes bytes(data + std::min(size, size_t{1}), data + size);
  if (kind == 0) sign(bytes);
  read(bytes);
}

}  // namespace cgx::native
