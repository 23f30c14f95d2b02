// Cutting of runs of values to size, and their placement in messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/plan/plan.h"

namespace cgx {

/// A run of one layer that is not yet placed in a message.
struct UnplacedRun {
  size_t offset;
  size_t count;
  const Codec* codec;
  uint64_t index;  // as in Run
};

/// The next multiple of kRunAlignment.
size_t align_run(size_t bytes);

/// Places a run in a chunk, behind its other runs; an empty run adds nothing.
void append(Chunk& chunk, const UnplacedRun& run, DType dtype);

/// The largest multiple of the granule whose encoding fits into `budget` bytes (0 if not even one
/// does), at most `count`.
size_t fitting(const Codec& codec, size_t granule, size_t count, size_t budget, DType dtype);

/// Cuts runs into `count` consecutive chunks of about equal encoded size, at granules.
std::vector<Chunk> cut_evenly(const std::vector<UnplacedRun>& runs, int count, DType dtype);

}  // namespace cgx
