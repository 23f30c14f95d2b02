// The table of runs that a kernel works through: one entry for each run of each message of a
// stage, so that a stage is one launch however many layers it covers.
//
// A run is cut into tiles. A thread block, or a warp, takes a tile at a time; the tiles of all runs
// of a list are numbered through, and the host says which run each belongs to. Built on the host
// (codec/gpu/run_table.h), shared by host and device: it holds no pointers.
#pragma once

#include "base/host_device.h"

namespace cgx::gpu {

/// In place of a family's number: `wire` values, one behind the other.
constexpr uint8_t kRaw = 0;

/// Element types, as cgx::DType.
enum class Type : uint8_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };
/// Stands for float64, which Type lacks, where a call names its type as uint8_t.
inline constexpr uint8_t kWideType = 3;

struct alignas(8) CodecRun {
  uint64_t value;         // place of the first value in the tensor that is read, or decoded to
  uint64_t sum;           // place where its sum goes
  uint64_t start;         // values before it are another list's; where a bucket starts
  uint64_t count;         // values, with those
  uint64_t index;         // counter of the generator at the first value
  uint64_t bucket;        // values; 0 where the family has none
  uint64_t meta;          // byte of the message where the meta of the first bucket lies
  uint64_t codes;         // byte of the message where the codes, or raw values, start
  uint64_t first_tile;    // of all tiles of the table
  uint64_t first_bucket;  // of the run, where its tiles start; of runs with tile_buckets
  uint64_t first_long;    // of all long buckets, where this run's are
  uint32_t tile;          // values in each tile but the last; a multiple of 8
  uint32_t
      tile_buckets;  // whole buckets in such a tile; 0: buckets cross its borders, or there are none
  uint32_t message;  // which of the launch's messages
  uint32_t
      inverse;     // place * inverse >> 22 is the bucket of a place of a tile that starts with one
  uint8_t family;  // number of its declaration, or kRaw
  uint8_t bits;    // of a code
  Type wire;       // of raw values
  uint8_t long_buckets;  // 1: they cross borders of tiles; a pass before writes their meta
  uint8_t own[4];        // further parameters, as the family defines them
};
static_assert(sizeof(CodecRun) == 112, "the table is read by the device as it lies on the host");

/// Values that a tile holds, and the threads that share its work.
constexpr uint32_t kTile = 2048;
/// Values of the longest tile: of families whose blocks must not cross tiles.
constexpr uint32_t kLongestTile = 4096;
constexpr uint32_t kThreads = 256;
/// Values that a thread codes at once. Where buckets are multiples of it, a group lies in one.
constexpr uint32_t kGroup = 8;
static_assert(kTile == kGroup * kThreads);
/// Values in a part, which one thread block takes, of calls without a table of runs.
inline constexpr uint32_t kPartValues = kThreads * kGroup;
/// Values that a warp codes at once, and their log2.
[[maybe_unused]] constexpr uint32_t kUnitOfWarp = 512, kLogOfUnit = 9;

/// Thread blocks on a multiprocessor at once: as many as leave their threads 80 registers. Not for AMD: see codec.cu.
[[maybe_unused]] constexpr uint32_t kThreadBlocks = 3;

/// A list of runs as kernels see it. A list of one run needs no memory on the device.
struct Table {
  const CodecRun* runs;         // of more than one
  const uint32_t* run_of_tile;  // their numbers, by tile
  uint64_t tiles;
  uint64_t long_buckets;
  uint32_t n_runs;
  uint32_t split;  // kernels of warps: log2 of the warps that share a tile
  CodecRun only;   // the run of a list of one
};

/// Messages of a launch: their addresses travel as arguments of the kernel, which have 4 KiB.
constexpr uint32_t kMostMessages = 256;

}  // namespace cgx::gpu
