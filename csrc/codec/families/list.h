// The families of codecs: a line for each, with the name of its folder. Tables list them in this
// order.
#pragma once

#include "codec/config.h"

#define CGX_FAMILIES(FAMILY) \
  FAMILY(maxmin)             \
  FAMILY(rotated)            \
  FAMILY(trellis)            \
  FAMILY(half)               \
  FAMILY(float)              \
  FAMILY(block)              \
  FAMILY(raw)

namespace cgx {

/// const Family& maxmin_family(), and so on: each is defined in its folder.
#define CGX_DECLARE(name) const Family& name##_family();
CGX_FAMILIES(CGX_DECLARE)
#undef CGX_DECLARE

}  // namespace cgx
