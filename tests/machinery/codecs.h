// Codecs that Python hands over.
#pragma once

#include "bindings/codec.h"

namespace cgx {

/// A codec of this module's copy of the core, equal to the given one, which torch_cgx._C has made:
/// what runs here is then one copy, on one SIMD level.
inline std::shared_ptr<const Codec> own_codec(const CodecHandle& handle) {
  const CodecConfig& theirs = handle.codec->config();
  CodecConfig config = config_named(theirs.name());
  for (const Parameter& p : config.family().parameters) config.set(p.name, theirs.text(p.name));
  return make_codec(config);
}

}  // namespace cgx
