#include "base/dtype_set.h"

#include "base/error.h"

namespace cgx {

std::string DTypeSet::text() const {
  std::string names;
  for (int number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (has(dtype)) names += (names.empty() ? "" : ", ") + std::string(name_of(dtype));
  }
  return names.empty() ? "none" : names;
}

void check_dtype(const std::string& what, DType dtype, const DTypeSet& allowed) {
  if (allowed.has(dtype)) return;
  throw ConfigError(str_of(what, " is torch.", name_of(dtype), ", allowed: ", allowed.text()));
}

}  // namespace cgx
