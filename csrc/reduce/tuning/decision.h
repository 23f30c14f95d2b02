// What the autotuner decides between, and which of them wins.
//
// Uses only * and comparisons on doubles: equal numbers give equal results on every rank.
// Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cgx {

/// The form in which the compressed layers of a call are sent. A tie goes to the first in this
/// order.
enum class Decision : uint8_t { kExact = 0, kHalf = 1, kAsked = 2 };
inline constexpr size_t kDecisions = 3;
inline constexpr Decision kAllDecisions[] = {Decision::kExact, Decision::kHalf, Decision::kAsked};
/// "exact", "16 bits", "asked"
const char* name_of(Decision decision);

/// Whether a decision is there to be made, by decision.
using Available = std::array<bool, kDecisions>;

/// Seconds by decision; negative: unknown.
using Seconds = std::array<double, kDecisions>;

/// The fastest; more bits unless fewer save more than 1 - kClearly of the time. kAsked if none is
/// known.
inline constexpr double kClearly = 0.98;
Decision fastest(const Seconds& seconds);

}  // namespace cgx
