#include "reduce/plan/cut.h"

#include <algorithm>

namespace cgx {

size_t align_run(size_t bytes) {
  return (bytes + kRunAlignment - 1) / kRunAlignment * kRunAlignment;
}

void append(Chunk& chunk, const UnplacedRun& run, DType dtype) {
  if (run.count == 0) return;
  Run placed;
  placed.offset = run.offset;
  placed.count = run.count;
  placed.codec = run.codec;
  placed.packed = chunk.values;
  placed.index = run.index;
  placed.payload = align_run(chunk.payload_bytes);
  placed.bytes = run.codec->encoded_bytes(run.count, dtype);
  chunk.payload_bytes = placed.payload + placed.bytes;
  chunk.values += run.count;
  chunk.runs.push_back(placed);
}

size_t fitting(const Codec& codec, size_t granule, size_t count, size_t budget, DType dtype) {
  if (codec.encoded_bytes(count, dtype) <= budget) return count;
  size_t low = 0, high = count / granule;  // low fits, high + 1 granules do not (or are too many)
  while (low < high) {
    size_t middle = low + (high - low + 1) / 2;
    if (codec.encoded_bytes(middle * granule, dtype) <= budget) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * granule;
}

std::vector<Chunk> cut_evenly(const std::vector<UnplacedRun>& runs, int count, DType dtype) {
  size_t total = 0;
  for (const UnplacedRun& run : runs) total += run.codec->encoded_bytes(run.count, dtype);
  std::vector<Chunk> chunks(static_cast<size_t>(count));
  size_t next = 0, used = 0,
         done = 0;  // position: `used` values of runs[next]; `done` bytes given away
  for (int number = 0; number < count; ++number) {
    Chunk& chunk = chunks[static_cast<size_t>(number)];
    const size_t left = static_cast<size_t>(count - number);
    size_t target = done < total ? (total - done + left - 1) / left : 0;
    while (next < runs.size() && (target > 0 || left == 1)) {
      const UnplacedRun& run = runs[next];
      const size_t rest = run.count - used;
      const size_t bytes = run.codec->encoded_bytes(rest, dtype);
      size_t take = rest;
      if (left > 1 && bytes > target) {
        // Nearest granule border to the target, at least one granule so that every chunk makes
        // progress.
        const size_t granule = run.codec->granule();
        const double per_value = static_cast<double>(bytes) / static_cast<double>(rest);
        const double granules =
            static_cast<double>(target) / per_value / static_cast<double>(granule);
        size_t whole = static_cast<size_t>(granules + 0.5);
        if (whole == 0 && chunk.empty()) whole = 1;
        take = std::min(rest, whole * granule);
      }
      if (take == 0) break;
      append(chunk, UnplacedRun{run.offset + used, take, run.codec, run.index + used}, dtype);
      const size_t spent = run.codec->encoded_bytes(take, dtype);
      done += spent;
      target -= std::min(target, spent);
      used += take;
      if (used == run.count) {
        ++next;
        used = 0;
      } else {
        break;
      }
    }
  }
  return chunks;
}

}  // namespace cgx
