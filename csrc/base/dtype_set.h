// The element types that a contract takes: what it checks by, and what it says in its errors.
#pragma once

#include <initializer_list>
#include <string>

#include "base/dtype.h"

namespace cgx {

class DTypeSet {
 public:
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) members_ |= bit(dtype);
  }

  constexpr bool has(DType dtype) const { return (members_ & bit(dtype)) != 0; }
  /// "float32, float16, bfloat16": in the order of DType.
  std::string text() const;
  constexpr bool operator==(const DTypeSet&) const = default;

 private:
  static constexpr uint32_t bit(DType dtype) {
    return static_cast<int>(dtype) < kDTypeCount ? uint32_t{1} << static_cast<int>(dtype) : 0;
  }
  static_assert(kDTypeCount <= 32);

  uint32_t members_ = 0;
};

/// What wire codecs and reducers compute on.
inline constexpr DTypeSet kComputed{DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// ConfigError unless `allowed` has the type: "x is torch.int64, allowed: float32, float16, bfloat16".
void check_dtype(const std::string& what, DType dtype, const DTypeSet& allowed);

}  // namespace cgx
