// The families of casts: a line for each, with the name of its folder. Tables list them in this order.
#pragma once

#include "codec/cast.h"

#define CGX_CASTS(CAST) CAST(float) CAST(fixed) CAST(integer) CAST(block) CAST(zscore) CAST(s2fp8)

namespace cgx {

/// const CastFamily& e4m3_cast(), and so on: each is defined in its folder.
#define CGX_DECLARE(name) const CastFamily& name##_cast();
CGX_CASTS(CGX_DECLARE)
#undef CGX_DECLARE

}  // namespace cgx
