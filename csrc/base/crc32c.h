// CRC-32C (Castagnoli; RFC 3720, appendix B.4): finds every error of up to 32 bits in a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx {

/// CRC of "123456789": 0xE3069283. Uses the processor's instruction if there is one.
uint32_t crc32c(const void* data, size_t bytes);

/// The same from tables, on any processor.
uint32_t crc32c_by_tables(const void* data, size_t bytes);

}  // namespace cgx
