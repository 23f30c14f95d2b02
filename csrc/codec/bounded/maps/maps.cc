#include "codec/bounded/maps/maps.h"

#include <cmath>

#include "base/float_mode.h"

namespace cgx::bounded {

Maps::Maps(DType element, BoundKind kind, double bound, int version)
    : element_(element), kind_(kind), bound_(bound), version_(version) {
  const FloatMode mode;
  if (kind == BoundKind::kLossless) {
    if (bound != 0)
      throw ConfigError(str_of("the bound is ", bound, ", of lossless values it is 0"));
    return;
  }
  if (!is_floating(element)) throw ConfigError("whole numbers have no bound: they are lossless");
  const bool small = kind != BoundKind::kPointwise || bound < 1;
  if (!(std::isfinite(bound) && bound > 0 && small)) {
    throw ConfigError(str_of(
        "the bound is ", bound, ", allowed: ",
        kind == BoundKind::kPointwise ? "numbers between 0 and 1" : "positive finite numbers"));
  }
  if (is_half(element)) {
    lattice_ = Lattice(element, bound, kind != BoundKind::kPointwise, version > 1);
    bounded_ = Map::kLattice;
  } else if (kind != BoundKind::kPointwise) {
    // A step that is subnormal, or whose inverse is, has lost digits.
    if (bound >= 0x1p-1000 && bound <= 0x1p1000) bounded_ = Map::kGrid;
  } else {
    log_grid_ = LogGrid(bound);
    if (log_grid_.codes() > 0) bounded_ = Map::kLogGrid;
  }
}

}  // namespace cgx::bounded
