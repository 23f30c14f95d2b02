// Errors of the engine as torch knows them, whoever calls an operator.
#pragma once

#include <c10/util/Exception.h>

#include "base/error.h"

namespace cgx {

/// work(), whose ConfigError becomes a ValueError.
template <typename Work>
auto for_torch(const Work& work) {
  try {
    return work();
  } catch (const ConfigError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace cgx
