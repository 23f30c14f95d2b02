// Sizes of a round's exchanges.
#pragma once

#include <cstddef>

#include "reduce/plan/plan.h"

namespace cgx {

/// Bytes of the longest exchange among the ranks of a team (of the group, with one level), and of
/// the longest one inside a host. The maximum over all ranks.
struct Exchanges {
  size_t cross = 0, intra = 0;

  bool fit(size_t into_cross, size_t into_intra) const {
    return cross <= into_cross && intra <= into_intra;
  }
};

/// The exchanges of a round of `plan`, whose operation, dtype and levels are set.
Exchanges exchanges_of(const Round& round, const Plan& plan, int hosts);

}  // namespace cgx
