// Builds the table of runs of a launch from the runs of a plan. Host only.
#pragma once

#include <cstddef>
#include <vector>

#include "codec/codec.h"
#include "codec/gpu/run.h"

namespace cgx::gpu {

/// As kernels call it. ConfigError: another number.
Type type_of(DType dtype);

/// Runs whose tiles, and long buckets, are numbered through: what one launch works on.
class RunList {
 public:
  void append(CodecRun run);

  const std::vector<CodecRun>& runs() const { return runs_; }
  uint64_t tiles() const { return tiles_; }
  /// Buckets whose meta has to be computed before their runs are encoded.
  uint64_t long_buckets() const { return long_buckets_; }
  /// The number of each tile's run.
  std::vector<uint32_t> run_of_tile() const;

  /// Lays the list behind what is in `image`, where it has more than one run; and the table of a list
  /// that lies at `image` on the device, which then points behind it.
  void append_to(std::vector<std::byte>& image) const;
  Table table(const std::byte*& image) const;

 private:
  std::vector<CodecRun> runs_;
  uint64_t tiles_ = 0;
  uint64_t long_buckets_ = 0;
};

/// The tables of a launch as its kernels see them: all runs, for thread blocks; or the same in parts.
struct Tables {
  struct OfWarps {
    uint8_t family;
    Table table;
  };
  Table all{}, rest{};
  std::vector<OfWarps> warps;
};

/// The kernels of thread blocks take any run. Families may have kernels of warps, too, which are
/// faster and take some of the runs, or the first values of them.
class RunTable {
 public:
  /// A run of `count` values of a tensor of type `dtype`, coded by `codec`.
  ///   value    place of its first value in the tensor
  ///   sum      place of its first value where sums go
  ///   index    counter of the generator there
  ///   payload  byte of the message where its payload starts
  ///   message  which of the launch's messages
  /// ConfigError: no kernel knows the codec.
  void add(const Codec& codec, DType dtype, uint64_t value, uint64_t sum, uint64_t count,
           uint64_t index, uint64_t payload, uint32_t message);

  /// Called by families. Value, sum, count, index, message and family of `run` are set; for
  /// append() the family has set all other fields that its kernels read, too. by_warps: values from
  /// the first one on that the family's kernels of warps take, whole buckets unless all of them.
  /// add_raw(): values of type `wire`, one behind the other, from byte `payload` on.
  void append(CodecRun run, uint64_t by_warps = 0);
  void add_raw(CodecRun run, DType wire, uint64_t payload);

  /// All runs, for thread blocks.
  const RunList& all() const { return all_; }
  /// The same, in two parts: by family what its warps take; and what is left, for thread blocks.
  const RunList& by_warps(uint8_t family) const;
  const RunList& rest() const { return rest_; }

  /// What the device has to hold, none for lists of one run each; and the tables once it lies there,
  /// at a multiple of 8 bytes.
  std::vector<std::byte> image() const;
  Tables tables(const std::byte* image) const;

 private:
  struct OfFamily {
    uint8_t family;
    RunList list;
  };
  RunList all_, rest_;
  std::vector<OfFamily> warps_;
};

}  // namespace cgx::gpu
