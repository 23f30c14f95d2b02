#include "reduce/moves/room.h"

#include <algorithm>

#include "base/error.h"
#include "comm/messages.h"
#include "reduce/plan/header.h"
#include "reduce/plan/plan.h"

namespace cgx {
namespace {

// Of a message, beside its values; communicators may align messages.
size_t bytes_around(const EngineOptions& options) {
  return Messages::kPayloadOffset + (options.checksum ? kChecksumBytes : 0) + kRunAlignment;
}

}  // namespace

size_t bytes_inside(const EngineOptions& options, size_t messages, size_t wanted) {
  const size_t around = std::max<size_t>(messages, 1) * bytes_around(options);
  // Communicators that grow have memory for longer exchanges, too: beside, and twice as much. Where
  // headers would take most of a short one, they use it.
  const size_t room = options.intra.grows() ? options.intra.wanted : options.intra.most;
  const size_t left = room - std::min(around, options.intra.grows() ? room / 2 : room);
  return std::min({wanted, options.intra.wanted, left});
}

void check_bucket(const Codec& codec, DType dtype, const EngineOptions& options, size_t messages) {
  if (options.intra.grows()) return;
  const size_t encoded = codec.encoded_bytes(codec.granule(), dtype);
  const size_t room = options.intra.most / std::max<size_t>(messages, 1);
  if (encoded + bytes_around(options) <= room) return;
  throw ConfigError(
      str_of("one bucket of ", codec.granule(), " values (", codec.describe(), "), ", encoded,
             " bytes encoded, does not fit into a message of ", room,
             " bytes, which the communicator cannot make longer; use smaller buckets, "
             "or raise CGX_SHM_SEGMENT_KB"));
}

}  // namespace cgx
