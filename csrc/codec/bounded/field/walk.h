// The way through a field, which encoder and decoder share: which value comes when, what it is
// predicted by, and in which neighbourhood it lies.
//
// A plane is refined from level to level. Known are first the values at every 2^levels-th place of
// every 2^levels-th row, the anchors. A level doubles rows and columns:
//
//     K A K A      K known, A between two known values of a row ("across")
//     B C B C      B between two known values of a column ("down")
//     K A K A      C between four ("both"), after A and B
//
// A and B are predicted by the cubic through four known values, C by the mean of the two cubics
// through values of A and of B. To this come errors that such cubics had: in the row before of the same
// class, and at the same place of the two planes before. How much they count says the encoder
// (Weights), by the method of least squares. Behind borders, known values are continued by lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/bounded/field/geometry.h"
#include "codec/bounded/field/rows.h"

namespace cgx::bounded::field {

/// Places that share a set of weights, and of which neighbourhoods have the same scale: anchors, then
/// by level (the finest, the next, all others) and class (A, B, C).
inline constexpr int kAnchors = 0, kScales = 3, kClasses = 3, kGroups = 1 + kScales * kClasses;
inline constexpr int group_of(int level, int class_) {
  const int scale = level < kScales ? level : kScales - 1;
  return 1 + scale * kClasses + class_;
}

/// The context of a token in a neighbourhood of that number, whose group has that scale.
inline constexpr int kLeastScale = -8, kMostScale = 7;
inline constexpr int context_of(int bin, int scale) {
  if (bin == 0) return 0;
  const int context = bin + scale;
  return context < 1 ? 1 : context > kBins - 1 ? kBins - 1 : context;
}

/// Levels of planes of this shape: at least 1.
int levels_of(const Geometry& geometry);

/// Memory of rows with room before and behind each, and before the first and behind the last.
template <typename T>
class Sheet {
 public:
  static constexpr size_t kRoom = kGroup;  // numbers beside a row; rows above and below: 1 and 2
  /// Numbers are 0, or, where the sheet had this size already, as they were.
  void resize(size_t rows, size_t columns) {
    if (rows == rows_ && columns == columns_ && !data_.empty()) return;
    rows_ = rows;
    columns_ = columns;
    stride_ = columns + 2 * kRoom;
    data_.assign((rows + 3) * stride_ + kGroup, T{0});
  }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  /// From -1 to rows() + 1.
  T* row(std::ptrdiff_t number) {
    return data_.data() + static_cast<size_t>(number + 1) * stride_ + kRoom;
  }
  /// Continues the rows, and then the columns, by lines.
  void continue_rows();
  void continue_columns();

 private:
  size_t rows_ = 0, columns_ = 0, stride_ = 0;
  std::vector<T> data_;
};

/// A row of values that come together. Places are in the plane.
template <typename T>
struct Row {
  int group;
  size_t n;             // at least 1
  size_t at, step;      // place of the first in the plane, and from each to the next
  const T* predicted;   // what they are expected to be
  const float* sizes;   // of their neighbourhoods
  const uint8_t* bins;  // their numbers
  T* values;            // to be filled in: what they become,
  float* size;          // and how large their residuals are
};

/// T: the type of numbers, float or double. Not thread-safe. Its memory serves one field after the other.
template <typename T>
class Walk {
 public:
  /// Another field. middle: what the first value is expected to be; exact: see RowLoops.
  void begin(const Geometry& geometry, const Weights (&weights)[kGroups], T middle, bool exact);

  /// Goes through the next plane; visit(const Row<T>&) fills in each row.
  template <typename Visit>
  void plane(Visit&& visit);
  /// Writes the values of the last plane, in the order of places.
  void write_plane(T* out);

 private:
  // The values of a class at a level.
  struct Part {
    Sheet<T> values;
    Sheet<T> errors[3];     // of this plane and the two before, in turn
    Sheet<float> sizes[2];  // of this plane and the one before
    void resize(size_t rows, size_t columns);
  };
  struct Level {
    Part across, down, both;
    Sheet<T> known;  // what was known before
    Sheet<float> known_sizes;
  };

  template <typename Visit>
  void anchors(Visit&& visit);
  template <typename Visit>
  void row(Part& part, size_t number, int group, size_t at, size_t step, Around<T>& around,
           Visit&& visit);
  template <typename Visit>
  void refine(size_t level, Visit&& visit);
  void assemble(size_t level);

  Sheet<T>& errors(Part& part, size_t planes_ago) {
    return part.errors[(planes_ + 3 - planes_ago) % 3];
  }
  Sheet<float>& sizes(Part& part, size_t planes_ago) {
    return part.sizes[(planes_ + 2 - planes_ago) % 2];
  }

  Geometry geometry_;
  const RowLoops<T>& loops_ = row_loops<T>();
  Weights weights_[kGroups];
  T middle_ = 0;
  bool exact_ = false;
  size_t planes_ = 0;
  std::vector<Level> levels_;  // 0 is the finest
  Sheet<T> anchors_before_;
  Sheet<float> anchor_sizes_before_;
  std::vector<T> nothing_;  // the errors of rows and planes that are not there
  std::vector<T> base_, predicted_;
  std::vector<float> sizes_;
  std::vector<uint8_t> bins_;
};

}  // namespace cgx::bounded::field
