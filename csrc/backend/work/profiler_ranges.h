// cgx's stages as ranges of torch's profilers.
#pragma once

namespace cgx {

/// Once per process: base/trace.h shows its ranges to torch from then on.
void show_ranges_to_torch();

}  // namespace cgx
