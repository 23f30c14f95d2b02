#include "codec/bounded/field/rows.h"

#include "codec/bounded/field/tokens.h"

#define CGX_LEVEL_FILE "codec/bounded/field/rows-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::bounded::field {
template <>
const RowLoops<float>& row_loops<float>() {
  static constexpr cpu::ByLevel<RowLoops<float>> kByLevel = CGX_BY_LEVEL(kNarrow);
  return cpu::at_level(kByLevel);
}

template <>
const RowLoops<double>& row_loops<double>() {
  static constexpr cpu::ByLevel<RowLoops<double>> kByLevel = CGX_BY_LEVEL(kWide);
  return cpu::at_level(kByLevel);
}

}  // namespace cgx::bounded::field
