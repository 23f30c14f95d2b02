#include "codec/feedback.h"

#include "base/error.h"

namespace cgx {

void check_feedback(const Codec& codec) {
  const CodecConfig& config = codec.config();
  if (config.family().name != "maxmin" || config.get("bits") != 1) return;
  // The two levels are the extremes of a bucket, so a value of 0 between them is off by half their
  // distance: as much as the largest value, and more than the rest of the bucket together.
  throw ConfigError(str_of("error feedback with '", codec.describe(),
                           "': its residuals grow without bound; allowed at 1 bit: codec "
                           "'rotated' or 'trellis', and of maxmin 2 to 8 bits"));
}

}  // namespace cgx
