// How the kernels take the families of codecs in: by a list of structs, one for each family that
// has kernels, or for several that share them (families/gpu_list.h). families/maxmin/gpu/tiles.h is
// the model. All families are compiled together, each in a namespace of its own. Such a struct has
// only static members:
//
//   serves(family)
//              whether it is the struct of the family of this number: of a declaration, as
//              RunTable::add() sets it in the runs
//   Memory     what the threads of a thread block share beside Shared: trivial, without initializers
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
// inherits NoLongBuckets:
//
//   kLongBuckets = true
//   begin_bucket(memory, t)
//   see(shared, memory, from, n, t)                  the values [from, n) of a tile
//   end_bucket(block, memory, run, bucket, message)  writes the meta of the bucket
//
// `block`, a thread block, runs the phases: see stages.h. `t` is the number of the thread.
//
// A family may have kernels of warps, too, for the runs or the leading values that its gpu_runs gives
// them (RunTable::append()): a struct with static members in families/<name>/gpu/warps.h, kernels in
// codec.cu, and a line in warp_kernels.h. families/maxmin/gpu/warps.h is the model:
//   kFamily    its number
//   Memory     what the lanes of a warp share; an empty struct: nothing
//   encode<type>(warp, memory, call, item), decode<type>(...), sum(warp, memory, call, item)
//              the work of encode_stage() and the others on one item: see part_of() in warp.h
#pragma once

#include "codec/gpu/tile.h"

namespace cgx::gpu {

template <typename... Families>
struct FamilyList;

/// Which structs of a list a kernel needs: kernels of long buckets are compiled without the others.
enum class Needs : uint8_t { kAll, kLongBuckets };

template <>
struct FamilyList<> {
  struct Memory {};
  static constexpr CGX_HD bool has(uint8_t) { return false; }
  template <Needs needs, typename Work>
  static CGX_HD void with(uint8_t, Memory&, const Work&) {}
};

template <typename First, typename... Rest>
struct FamilyList<First, Rest...> {
  union Memory {
    typename First::Memory first;
    typename FamilyList<Rest...>::Memory rest;
  };

  static constexpr CGX_HD bool has(uint8_t family) {
    return First::serves(family) || FamilyList<Rest...>::has(family);
  }

  /// Calls work(struct, its memory) for the struct of the family of this number, which is in the
  /// list (RunTable::add() checks).
  template <Needs needs, typename Work>
  static CGX_HD void with(uint8_t family, Memory& memory, const Work& work) {
    if constexpr (needs == Needs::kLongBuckets && !First::kLongBuckets) {
      FamilyList<Rest...>::template with<needs>(family, memory.rest, work);
    } else if (First::serves(family)) {
      work(First{}, memory.first);
    } else {
      FamilyList<Rest...>::template with<needs>(family, memory.rest, work);
    }
  }
};

/// The shared memory of a thread block.
template <typename Families>
struct BlockMemory {
  Shared shared;
  typename Families::Memory family;
};

struct NoLongBuckets {
  static constexpr bool kLongBuckets = false;
};

}  // namespace cgx::gpu
