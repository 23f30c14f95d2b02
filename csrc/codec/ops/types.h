// Tags of element types, by which the SIMD levels overload their loads and stores.
#pragma once

#include <cstddef>

namespace cgx::cpu {

struct Float32 {
  static constexpr size_t kBytes = 4;
};
struct Float16 {
  static constexpr size_t kBytes = 2;
};
struct BFloat16 {
  static constexpr size_t kBytes = 2;
};

}  // namespace cgx::cpu
