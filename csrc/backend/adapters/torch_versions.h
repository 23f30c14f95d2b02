// The torch that this is compiled against, for the few places where 2.11 to 2.14 differ in C++.
#pragma once

#include <torch/headeronly/version.h>

/// For #if: true if torch's headers are of version major.minor or newer.
#define CGX_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||      \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
