// The SIMD levels, and tables of what exists once a level. foreach_level-inl.h compiles such things.
//
// Results are the same bits on every level. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx::cpu {

/// A level of another machine is never in force.
enum class Level : uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kNeon = 3 };
inline constexpr size_t kLevels = 4;

/// The level that loops run on: see level.h. Errors: ConfigError where CGX_CPU_LEVEL is bad.
Level level_in_force();

/// A table by level; null at the levels of other machines. CGX_BY_LEVEL (foreach_level-inl.h) fills it.
template <typename T>
using ByLevel = const T* const[kLevels];

/// The entry of the level in force. Errors: ConfigError where CGX_CPU_LEVEL is bad.
template <typename T>
const T& at_level(const ByLevel<T>& table) {
  return *table[static_cast<size_t>(level_in_force())];
}

}  // namespace cgx::cpu
