// Definitions of walk.h's templates. Included by encoder and decoder.
#pragma once

#include <algorithm>

#include "codec/bounded/field/walk.h"

namespace cgx::bounded::field {

template <typename T>
void Sheet<T>::continue_rows() {
  for (size_t r = 0; r < rows_; ++r) {
    T* const x = row(static_cast<std::ptrdiff_t>(r));
    const size_t last = columns_ - 1;
    const T first_step = columns_ > 1 ? x[1] - x[0] : T{0};
    const T last_step = columns_ > 1 ? x[last] - x[last - 1] : T{0};
    x[-1] = x[0] - first_step;
    x[columns_] = x[last] + last_step;
    x[columns_ + 1] = x[columns_] + last_step;
  }
}

template <typename T>
void Sheet<T>::continue_columns() {
  const auto last = static_cast<std::ptrdiff_t>(rows_) - 1;
  T* const above = row(-1) - kRoom;
  T* const below = row(last + 1) - kRoom;
  T* const further = row(last + 2) - kRoom;
  const T* const first = row(0) - kRoom;
  const T* const second = row(std::min<std::ptrdiff_t>(1, last)) - kRoom;
  const T* const end = row(last) - kRoom;
  const T* const before_end = row(std::max<std::ptrdiff_t>(0, last - 1)) - kRoom;
  for (size_t i = 0; i < stride_; ++i) {
    above[i] = first[i] - (second[i] - first[i]);
    const T step = end[i] - before_end[i];
    below[i] = end[i] + step;
    further[i] = below[i] + step;
  }
}

template <typename T>
void Walk<T>::Part::resize(size_t rows, size_t columns) {
  values.resize(rows, columns);
  for (auto& some : errors) some.resize(rows, columns);
  for (auto& some : sizes) some.resize(rows, columns);
}

template <typename T>
void Walk<T>::begin(const Geometry& geometry, const Weights (&weights)[kGroups], T middle,
                    bool exact) {
  geometry_ = geometry;
  std::copy(std::begin(weights), std::end(weights), weights_);
  middle_ = middle;
  exact_ = exact;
  planes_ = 0;
  levels_.resize(static_cast<size_t>(levels_of(geometry)));
  size_t rows = geometry.height, columns = geometry.width;
  for (Level& level : levels_) {
    const size_t even_rows = (rows + 1) / 2, even_columns = (columns + 1) / 2;
    level.known.resize(even_rows, even_columns);
    level.known_sizes.resize(even_rows, even_columns);
    level.across.resize(even_rows, columns / 2);
    level.down.resize(rows / 2, even_columns);
    level.both.resize(rows / 2, columns / 2);
    rows = even_rows;
    columns = even_columns;
  }
  anchors_before_.resize(rows, columns);
  anchor_sizes_before_.resize(rows, columns);
  const size_t room = geometry.width + 2 * kGroup;
  nothing_.assign(room, T{0});
  base_.resize(room);
  predicted_.resize(room);
  sizes_.resize(room);
  bins_.resize(room);
}

template <typename T>
template <typename Visit>
void Walk<T>::plane(Visit&& visit) {
  anchors(visit);
  for (size_t level = levels_.size(); level-- > 0;) {
    refine(level, visit);
    if (level > 0) assemble(level);
  }
  ++planes_;
}

// Anchors are expected to be as in the plane before, or as the one before them.
template <typename T>
template <typename Visit>
void Walk<T>::anchors(Visit&& visit) {
  Level& level = levels_.back();
  const size_t step = size_t{1} << levels_.size();
  for (size_t r = 0; r < level.known.rows(); ++r) {
    const auto number = static_cast<std::ptrdiff_t>(r);
    T* const values = level.known.row(number);
    float* const size = level.known_sizes.row(number);
    const T* const before = anchors_before_.row(number);
    const float* const size_before = anchor_sizes_before_.row(number);
    for (size_t c = 0; c < level.known.columns(); ++c) {
      if (planes_ > 0) {
        predicted_[0] = before[c];
        sizes_[0] = 6 * size_before[c];
      } else if (c > 0 || r > 0) {
        predicted_[0] = c > 0 ? values[c - 1] : level.known.row(number - 1)[0];
        sizes_[0] = 6 * (c > 0 ? size[c - 1] : level.known_sizes.row(number - 1)[0]);
      } else {
        predicted_[0] = middle_;
        sizes_[0] = 0;
      }
      loops_.bins(sizes_.data(), predicted_.data(), exact_, 1, bins_.data());
      visit(Row<T>{kAnchors, 1, (r * geometry_.width + c) * step, step, predicted_.data(),
                   sizes_.data(), bins_.data(), values + c, size + c});
    }
    std::copy_n(values, level.known.columns(), anchors_before_.row(number));
    std::copy_n(size, level.known.columns(), anchor_sizes_before_.row(number));
  }
}

// A row whose surroundings are known but for its own class: predicts it, has it filled in, and keeps
// its errors.
template <typename T>
template <typename Visit>
void Walk<T>::row(Part& part, size_t number, int group, size_t at, size_t step, Around<T>& around,
                  Visit&& visit) {
  const auto r = static_cast<std::ptrdiff_t>(number);
  const size_t n = part.values.columns();
  Sheet<T>& now = errors(part, 0);
  Sheet<T>& before = errors(part, 1);
  const T* const none = nothing_.data();
  around.up = number > 0 ? now.row(r - 1) : none;
  around.before = planes_ > 0 ? before.row(r) : none;
  around.before_up = planes_ > 0 && number > 0 ? before.row(r - 1) : none;
  around.before_that = planes_ > 1 ? errors(part, 2).row(r) : none;
  around.size_up = number > 0 ? sizes(part, 0).row(r - 1) : nullptr;
  around.size_before = planes_ > 0 ? sizes(part, 1).row(r) : nullptr;
  loops_.expect(around, weights_[group], exact_, n,
                {base_.data(), predicted_.data(), sizes_.data(), bins_.data()});
  T* const values = part.values.row(r);
  visit(Row<T>{group, n, at, step, predicted_.data(), sizes_.data(), bins_.data(), values,
               sizes(part, 0).row(r)});
  loops_.difference(values, base_.data(), n, now.row(r));
}

template <typename T>
template <typename Visit>
void Walk<T>::refine(size_t number, Visit&& visit) {
  Level& level = levels_[number];
  const size_t half = size_t{1} << number, step = 2 * half;
  const size_t line = geometry_.width;
  const auto index = static_cast<int>(number);
  level.known.continue_rows();
  const bool between_rows = level.down.values.rows() > 0;
  if (between_rows) level.known.continue_columns();
  // Sizes are continued as they are.
  for (size_t r = 0; r < level.known.rows(); ++r) {
    float* const size = level.known_sizes.row(static_cast<std::ptrdiff_t>(r));
    size[level.known.columns()] = size[level.known.columns() - 1];
  }
  const auto rows = static_cast<std::ptrdiff_t>(level.known.rows());
  std::copy_n(level.known_sizes.row(rows - 1), level.known.columns(), level.known_sizes.row(rows));
  if (level.across.values.columns() > 0) {
    for (size_t r = 0; r < level.across.values.rows(); ++r) {
      const auto at = static_cast<std::ptrdiff_t>(r);
      const T* const x = level.known.row(at);
      const float* const size = level.known_sizes.row(at);
      Around<T> around{.across = {x - 1, x, x + 1, x + 2}};
      around.left = size;
      around.right = size + 1;
      row(level.across, r, group_of(index, 0), r * step * line + half, step, around, visit);
    }
    if (between_rows) level.across.values.continue_columns();
  }
  for (size_t r = 0; r < level.down.values.rows(); ++r) {
    const auto at = static_cast<std::ptrdiff_t>(r);
    Sheet<T>& known = level.known;
    Around<T> around{
        .across = {known.row(at - 1), known.row(at), known.row(at + 1), known.row(at + 2)}};
    around.left = level.known_sizes.row(at);
    around.right = level.known_sizes.row(at + 1);
    row(level.down, r, group_of(index, 1), (r * step + half) * line, step, around, visit);
  }
  if (level.both.values.columns() == 0 || level.both.values.rows() == 0) return;
  level.down.values.continue_rows();
  Sheet<float>& upright = sizes(level.across, 0);
  Sheet<float>& sideways = sizes(level.down, 0);
  for (size_t r = 0; r < level.both.values.rows(); ++r) {
    const auto at = static_cast<std::ptrdiff_t>(r);
    const T* const x = level.down.values.row(at);
    Sheet<T>& y = level.across.values;
    Around<T> around{.across = {x - 1, x, x + 1, x + 2},
                     .down = {y.row(at - 1), y.row(at), y.row(at + 1), y.row(at + 2)}};
    around.upper = level.known.row(at);
    around.lower = level.known.row(at + 1);
    float* const side = sideways.row(at);
    side[sideways.columns()] = side[sideways.columns() - 1];
    around.left = side;
    around.right = side + 1;
    around.above = upright.row(at);
    around.below = upright.row(r + 1 == y.rows() ? at : at + 1);
    row(level.both, r, group_of(index, 2), (r * step + half) * line + half, step, around, visit);
  }
}

// Values of even and of odd columns.
template <typename T>
void weave(const T* even, const T* odd, T* __restrict out, size_t columns) {
  for (size_t i = 0; i < columns / 2; ++i) {
    out[2 * i] = even[i];
    out[2 * i + 1] = odd[i];
  }
  if (columns % 2 == 1) out[columns - 1] = even[columns / 2];
}

template <typename T>
void Walk<T>::write_plane(T* out) {
  Level& finest = levels_.front();
  const size_t columns = geometry_.width;
  for (size_t r = 0; r < geometry_.height; ++r, out += columns) {
    const auto half = static_cast<std::ptrdiff_t>(r / 2);
    if (r % 2 == 0) {
      weave(finest.known.row(half), finest.across.values.row(half), out, columns);
    } else {
      weave(finest.down.values.row(half), finest.both.values.row(half), out, columns);
    }
  }
}

// What a level has made is known to the next.
template <typename T>
void Walk<T>::assemble(size_t number) {
  Level& level = levels_[number];
  Level& finer = levels_[number - 1];
  for (size_t r = 0; r < finer.known.rows(); ++r) {
    const auto at = static_cast<std::ptrdiff_t>(r), half = at / 2;
    const size_t columns = finer.known.columns();
    if (r % 2 == 0) {
      weave(level.known.row(half), level.across.values.row(half), finer.known.row(at), columns);
      weave(level.known_sizes.row(half), sizes(level.across, 0).row(half),
            finer.known_sizes.row(at), columns);
    } else {
      weave(level.down.values.row(half), level.both.values.row(half), finer.known.row(at), columns);
      weave(sizes(level.down, 0).row(half), sizes(level.both, 0).row(half),
            finer.known_sizes.row(at), columns);
    }
  }
}

}  // namespace cgx::bounded::field
