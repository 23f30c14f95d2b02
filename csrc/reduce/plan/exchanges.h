// What the messages of a round take of the communicators.
#pragma once

#include <cstddef>

#include "reduce/plan/plan.h"

namespace cgx {

/// Bytes of the longest exchange among the ranks of a team (of the group, with one level), and of
/// that inside a host. At least; a rank that sends less than others counts with them.
struct Exchanges {
  size_t cross = 0, inner = 0;

  bool fit(size_t into_cross, size_t into_inner) const {
    return cross <= into_cross && inner <= into_inner;
  }
};

/// Of a round of `plan`, of which operation, dtype and levels are known.
Exchanges exchanges_of(const Round& round, const Plan& plan, int hosts);

}  // namespace cgx
