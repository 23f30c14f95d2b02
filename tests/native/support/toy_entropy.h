// An entropy coder for tests of compressors: runs of equal bytes, with a checksum.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "codec/entropy.h"

namespace cgx::native {

// A frame: how the content is written (1 byte: 0 as it is, 1 as pairs of a number and a byte), bytes of
// the content (4), CRC-32C of the content (4), then the content.
class ToyEntropy final : public EntropyCoder {
 public:
  size_t most_bytes(size_t content) const override { return kHeader + content; }

  std::vector<std::byte> compress(std::span<const std::byte> content,
                                  const ContentFacts&) const override {
    std::vector<std::byte> pairs;
    for (size_t i = 0; i < content.size() && pairs.size() < content.size();) {
      size_t end = i + 1;
      while (end < content.size() && end - i < 255 && content[end] == content[i]) ++end;
      pairs.push_back(static_cast<std::byte>(end - i));
      pairs.push_back(content[i]);
      i = end;
    }
    const bool shorter = pairs.size() < content.size();
    const std::span<const std::byte> body = shorter ? std::span<const std::byte>(pairs) : content;
    std::vector<std::byte> frame(kHeader + body.size());
    const auto size = static_cast<uint32_t>(content.size());
    const uint32_t crc = crc32c(content.data(), content.size());
    frame[0] = static_cast<std::byte>(shorter ? 1 : 0);
    std::memcpy(frame.data() + 1, &size, 4);
    std::memcpy(frame.data() + 5, &crc, 4);
    if (!body.empty()) std::memcpy(frame.data() + kHeader, body.data(), body.size());
    return frame;
  }

  std::vector<std::byte> decompress(std::span<const std::byte> frame, size_t size) const override {
    if (frame.size() < kHeader) throw ConfigError("the toy's frame is cut");
    uint32_t stated = 0, crc = 0;
    std::memcpy(&stated, frame.data() + 1, 4);
    std::memcpy(&crc, frame.data() + 5, 4);
    const auto mode = static_cast<uint8_t>(frame[0]);
    const auto body = frame.subspan(kHeader);
    if (mode > 1 || stated != size) throw ConfigError("the toy's frame is altered");
    std::vector<std::byte> content;
    if (mode == 0) {
      content.assign(body.begin(), body.end());
    } else {
      for (size_t i = 0; i + 1 < body.size() && content.size() <= size; i += 2) {
        content.insert(content.end(), static_cast<uint8_t>(body[i]), body[i + 1]);
      }
    }
    const bool odd = mode == 1 && body.size() % 2 != 0;
    if (odd || content.size() != size || crc32c(content.data(), content.size()) != crc) {
      throw ConfigError("the toy's frame is altered");
    }
    return content;
  }

 private:
  static constexpr size_t kHeader = 9;
};

}  // namespace cgx::native
