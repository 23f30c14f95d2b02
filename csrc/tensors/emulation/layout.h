// How a cast goes through a tensor: the runs of values that it treats by themselves.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>

#include "codec/cast.h"

namespace cgx {

/// The runs of a contiguous tensor, one behind the other. All have the same length, except that the last
/// ones of planes may be shorter: strips of fewer rows.
class CastLayout {
 public:
  CastLayout(const Cast& cast, c10::IntArrayRef sizes);

  struct Place {
    size_t first, count;  // values of the tensor
  };
  size_t values() const { return values_; }
  size_t runs() const { return runs_; }
  size_t columns() const { return columns_; }
  /// Of a plane, whose strips of rows are runs; else 1.
  size_t rows() const { return rows_; }
  /// Values of the longest run.
  size_t longest() const { return longest_; }
  Place run(size_t number) const;

 private:
  size_t values_, columns_, runs_, longest_, rows_ = 1;
  size_t plane_ = 0, strips_ = 1;  // values of a plane, and runs in it
};

}  // namespace cgx
