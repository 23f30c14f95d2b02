// How the kernels take the families of codecs in: by a list of structs, one for each family that
// has kernels (families/gpu_list.h). families/maxmin/gpu/tiles.h is the model. All families are
// compiled together, each in a namespace of its own. Such a struct has only static members:
//
//   kFamily    the number of the family's declaration; RunTable::add() sets it in the runs
//   Memory     what the threads of a block share beside Shared: trivial, without initializers
//   encode(block, shared, memory, tile, key, message)
//              shared.values to the message, and its codes into shared.codes
//   decode(block, shared, memory, tile, message, add)
//              the message to shared.values, or added to them
//   decode_again(block, shared, memory, tile)
//              to shared.values what decode() would give, right after encode(), from what that has
//              left in shared memory
//
// and for buckets that cross the borders of tiles (CodecRun::long_buckets), whose values come tile
// by tile, with calls of decode() between them where they are sums; a family without such buckets
// inherits these from NoLongBuckets:
//
//   begin_bucket(memory, t)
//   see(shared, memory, from, n, t)                  the values [from, n) of a tile
//   end_bucket(memory, run, bucket, message, t)      writes the meta of the bucket
//
// `block` runs the phases: see stages.h. `t` is the number of the thread.
#pragma once

#include "codec/gpu/tile.h"

namespace cgx::gpu {

template <typename... Families>
struct FamilyList;

template <>
struct FamilyList<> {
  struct Memory {};
  static constexpr CGX_HD bool has(uint8_t) { return false; }
};

template <typename First, typename... Rest>
struct FamilyList<First, Rest...> {
  union Memory {
    typename First::Memory first;
    typename FamilyList<Rest...>::Memory rest;
  };

  static constexpr CGX_HD bool has(uint8_t family) {
    return family == First::kFamily || FamilyList<Rest...>::has(family);
  }

  /// Calls work(struct, its memory) for the struct of the family of this number, which is in the
  /// list (RunTable::add() checks): the last one's number is not compared.
  template <typename Work>
  static CGX_HD void with(uint8_t family, Memory& memory, const Work& work) {
    if constexpr (sizeof...(Rest) > 0) {
      if (family != First::kFamily) return FamilyList<Rest...>::with(family, memory.rest, work);
    }
    work(First{}, memory.first);
  }
};

/// The shared memory of a block.
template <typename Families>
struct BlockMemory {
  Shared shared;
  typename Families::Memory family;
};

struct NoLongBuckets {
  template <typename Memory>
  static CGX_HD void begin_bucket(Memory&, uint32_t) {}
  template <typename Memory>
  static CGX_HD void see(const Shared&, Memory&, uint32_t, uint32_t, uint32_t) {}
  template <typename Memory>
  static CGX_HD void end_bucket(Memory&, const CodecRun&, uint64_t, unsigned char*, uint32_t) {}
};

}  // namespace cgx::gpu
