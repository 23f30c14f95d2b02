// Builds the table of runs of a launch from the pieces of a plan. Host only.
#pragma once

#include <cstddef>
#include <vector>

#include "codec/codec.h"
#include "codec/gpu/run.h"

namespace cgx::gpu {

/// As kernels call it. ConfigError: another number.
Type type_of(DType dtype);

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
  /// append() the family has set all other fields that its kernels read, too. add_raw(): values of
  /// type `wire`, one behind the other, from byte `payload` on.
  void append(CodecRun run);
  void add_raw(CodecRun run, DType wire, uint64_t payload);

  const std::vector<CodecRun>& runs() const { return runs_; }
  uint64_t tiles() const { return tiles_; }
  /// Buckets whose meta has to be computed before their runs are encoded.
  uint64_t long_buckets() const { return long_buckets_; }

 private:
  std::vector<CodecRun> runs_;
  uint64_t tiles_ = 0;
  uint64_t long_buckets_ = 0;
};

}  // namespace cgx::gpu
