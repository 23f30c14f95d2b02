#include "tensors/emulation/layout.h"

#include <algorithm>

namespace cgx {
namespace {

size_t product(c10::IntArrayRef sizes) {
  size_t all = 1;
  for (const int64_t size : sizes) all *= static_cast<size_t>(size);
  return all;
}

}  // namespace

CastLayout::CastLayout(const Cast& cast, c10::IntArrayRef sizes)
    : values_(product(sizes)), columns_(values_), runs_(1), longest_(values_) {
  if (values_ == 0 || !cast.by_rows()) return;
  if (cast.by_channels()) {
    columns_ = longest_ = values_ / (sizes.empty() ? 1 : static_cast<size_t>(sizes[0]));
    runs_ = values_ / longest_;
  } else {
    columns_ = sizes.empty() ? 1 : static_cast<size_t>(sizes.back());
    const size_t rows = sizes.size() < 2 ? 1 : static_cast<size_t>(sizes[sizes.size() - 2]);
    if (cast.block_rows() > 1) {
      rows_ = rows;
      plane_ = rows * columns_;
      longest_ = std::min(cast.block_rows(), rows) * columns_;
      strips_ = (plane_ + longest_ - 1) / longest_;
      runs_ = values_ / plane_ * strips_;
      return;
    }
    if (cast.group() != Group::kRun && columns_ % cast.block() == 0) {
      columns_ = values_;  // rows of whole blocks are one long run
      return;
    }
    longest_ = columns_;
    runs_ = values_ / columns_;
  }
  plane_ = longest_;
}

CastLayout::Place CastLayout::run(size_t number) const {
  if (runs_ == 1) return {0, values_};
  const size_t start = number / strips_ * plane_, inside = number % strips_ * longest_;
  return {start + inside, std::min(longest_, plane_ - inside)};
}

}  // namespace cgx
