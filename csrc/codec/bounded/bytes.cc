#include "codec/bounded/bytes.h"

#include "codec/bounded/element.h"

namespace cgx::bounded {

uint64_t take_number(std::span<const std::byte>& in) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<uint64_t>(take<uint8_t>(in));
    if (shift == 63 && byte > 1) break;
    value |= (byte & 127) << shift;
    if (byte < 128) return value;
  }
  throw PayloadError("a number of the block has more than 64 bits");
}

std::span<const std::byte> take_bytes(std::span<const std::byte>& in, size_t count) {
  if (count > in.size()) {
    throw PayloadError(str_of("the block is cut: ", count, " bytes are missing at its end, ",
                              in.size(), " are there"));
  }
  const auto taken = in.first(count);
  in = in.subspan(count);
  return taken;
}

}  // namespace cgx::bounded
