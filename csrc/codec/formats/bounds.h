// How far a value may be from what it becomes.
#pragma once

#include "codec/formats/format.h"

namespace cgx::formats {

/// What |cast(x) - x| may be at most, for a finite x: half of the step between the numbers around it, or the
/// whole of it where rounding is not to nearest. Infinite for an x beyond the largest number, or one that
/// has no number.
double error_bound(const Casting& casting, double x);

}  // namespace cgx::formats
