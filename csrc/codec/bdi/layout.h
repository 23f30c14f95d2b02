// Places and sizes in a payload, for the writer and the reader of payload.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/bdi/bits.h"
#include "codec/bdi/format.h"

namespace cgx::bdi {

constexpr char kMagic[4] = {'C', 'G', 'X', 'I'};
constexpr uint16_t kVersion = 1;
constexpr uint8_t kZeroMaskFlag = 1;
constexpr size_t kVersionAt = 4, kWordsAt = 6, kFlagsAt = 7, kBytesAt = 8, kBatchAt = 16;
constexpr size_t kScalesAt = 18, kDimsAt = 21, kImmediatesAt = 22, kConfigsAt = 23;
constexpr size_t kHeaderBytes = 24;  // before what has no fixed size
constexpr size_t kConfigBytes = 3;
constexpr size_t kChecksumBytes = 4;

inline size_t head_bytes(size_t dims, size_t immediates, size_t configs) {
  return kHeaderBytes + 8 * dims + 4 * immediates + kConfigBytes * configs;
}
inline size_t head_bytes(const Format& format, size_t dims) {
  return head_bytes(dims, format.immediates.size(), format.configs.size());
}

inline uint64_t chunks_of(const Format& format, uint64_t words) {
  return words / format.batch + (words % format.batch != 0 ? 1 : 0);
}

/// Bits of a chunk's number in the table.
inline uint32_t table_width(const Format& format) {
  return width_of(static_cast<uint32_t>(format.configs.size()));
}
inline uint64_t table_bytes(const Format& format, uint64_t chunks) {
  return bytes_of(chunks * table_width(format));
}

}  // namespace cgx::bdi
