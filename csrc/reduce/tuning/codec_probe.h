// Measures the speed of a codec on this CPU.
#pragma once

#include "codec/codec.h"
#include "reduce/tuning/cost_model.h"

namespace cgx {

/// Seconds per value of fp32, with the calling thread alone: the least of some runs over a message
/// that fits into the cache. Takes some milliseconds for a slow codec. Thread-safety: any thread.
CodecCost time_codec(const Codec& codec);

}  // namespace cgx
