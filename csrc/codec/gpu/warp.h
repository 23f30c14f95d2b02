// The work of a warp: lanes that each keep values of their own in registers, and exchange them. No
// memory is shared and no barrier waited for, unless a family says so.
//
// A kernel's code is written once, for the device and for the host's tests. `Warp` is a warp of the
// device (codec.cu) or a loop over lanes (tests/device/host_kernels.h):
//   each(work)            work(lane) on each lane; inside, a lane neither writes what another one
//                         reads nor reads what it writes
//   Own<T>                a T of each lane, from one each() to the next: own(lane); own(0) between
//                         them, where all lanes have the same
//   exchange(own, step)   the Own<T> of the lanes whose numbers differ by `step`, a power of two; T
//                         is a float, a uint32_t, or an Array of them
//   take(own, from)       the value of lane from(lane) modulo 32, T being a float or a uint32_t
//   share()               what lanes have written to memory is seen by the others
// All lanes reach each of these calls.
#pragma once

#include "codec/gpu/array.h"

namespace cgx::gpu {

constexpr uint32_t kLanes = 32;

/// What a warp takes at a time: a tile, or one of the 2^split parts of it, none of them smaller than
/// `least` values (of the run's family). n = 0: the values are another warp's.
struct Part {
  CodecRun run;
  uint64_t first;  // value of the run
  uint32_t n;      // values
};
template <typename Least>
CGX_HD Part part_of(const Table& table, uint64_t item, const Least& least) {
  const uint64_t tile = item >> table.split;
  const CodecRun run = run_of(table, tile);
  const uint32_t share = run.tile >> table.split, smallest = least(run);
  const uint32_t size = share < smallest ? smallest : share;
  const uint32_t skipped = share * static_cast<uint32_t>(item - (tile << table.split));
  const uint64_t first = run.start + (tile - run.first_tile) * run.tile + skipped;
  if ((skipped & (size - 1)) != 0 || first >= run.count) return {run, first, 0};
  const uint64_t left = run.count - first;
  return {run, first, left < size ? static_cast<uint32_t>(left) : size};
}

}  // namespace cgx::gpu
