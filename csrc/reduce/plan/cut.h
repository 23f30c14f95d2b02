// Cutting of runs of values to size, and their placement in messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/plan/plan.h"

namespace cgx {

/// A run of one layer that is not yet placed in a message.
struct Run {
  size_t offset;
  size_t count;
  const Codec* codec;
  uint64_t index;  // as Piece's
};

/// The next multiple of kPieceAlignment.
size_t align_piece(size_t bytes);

/// Adds a run to a chunk as its next piece; an empty run adds nothing.
void append(Chunk& chunk, const Run& run, DType dtype);

/// The largest multiple of the granule whose encoding fits into `budget` bytes (0 if not even one
/// does), at most `count`.
size_t fitting(const Codec& codec, size_t granule, size_t count, size_t budget, DType dtype);

/// Cuts runs into `parts` consecutive chunks of about equal encoded size, at granules.
std::vector<Chunk> cut_evenly(const std::vector<Run>& runs, int parts, DType dtype);

}  // namespace cgx
