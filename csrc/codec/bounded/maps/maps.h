// What a bound means for one type: everything that encoders and decoders of a tensor's blocks share.
#pragma once

#include <memory>

#include "codec/bounded/element.h"
#include "codec/bounded/kinds.h"
#include "codec/bounded/maps/lattice.h"
#include "codec/bounded/maps/log_grid.h"

namespace cgx::bounded {

/// The numbers are part of the payload's format.
enum class BoundKind : uint8_t {
  kLossless = 0,
  kAbsolute = 1,   // |x - y| <= bound
  kRelative = 2,   // the same; the bound was given in parts of the tensor's finite range
  kPointwise = 3,  // |x - y| <= bound |x|
};
inline constexpr int kLastBoundKind = 3;

/// Versions of the format; new payloads have the last. In version 1 no lattice has subnormal numbers,
/// no log grid a step below 2^-1022, and words of a float64 grid have no limit. Before version 3 there
/// are neither windowed symbols nor fields.
inline constexpr int kFirstVersion = 1, kLastVersion = 3;

/// Immutable; may be used by several threads.
class Maps {
 public:
  /// ConfigError: `bound` is not finite, not positive (0 where lossless), or 1 and more where
  /// pointwise; or a whole number's type has a bound.
  Maps(DType element, BoundKind kind, double bound, int version);
  /// Of the version that new payloads have.
  Maps(DType element, BoundKind kind, double bound) : Maps(element, kind, bound, kLastVersion) {}

  DType element() const { return element_; }
  int version() const { return version_; }
  double bound() const { return bound_; }
  BoundKind kind() const { return kind_; }
  bool pointwise() const { return kind_ == BoundKind::kPointwise; }

  /// The map that blocks of this type use within the bound; kOrder if they are lossless.
  Map bounded() const { return bounded_; }
  const Lattice& lattice() const { return lattice_; }
  const LogGrid& log_grid() const { return log_grid_; }

 private:
  const DType element_;
  const BoundKind kind_;
  const double bound_;
  const int version_;
  Map bounded_ = Map::kOrder;
  Lattice lattice_;
  LogGrid log_grid_;
};

}  // namespace cgx::bounded
