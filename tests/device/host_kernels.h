// The kernels' code on the host: thread blocks whose threads, and warps whose lanes, take turns. So
// a missing barrier does not show here. For warps it does in tests/native/support/lane_threads.h.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "codec/families/gpu_list.h"
#include "codec/gpu/run_table.h"
#include "codec/gpu/stages.h"
#include "codec/gpu/warp.h"

namespace cgx::device {

struct HostBlock {
  struct Kept {
    float values[gpu::kThreads][gpu::kLongestTile / gpu::kThreads];
    float& at(uint32_t t, uint32_t k) { return values[t][k]; }
  };

  /// Backwards: a phase whose threads depend on each other would show.
  template <typename Work>
  void phase(const Work& work) {
    for (uint32_t t = gpu::kThreads; t-- > 0;) work(t);
  }

  template <typename Work>
  bool any_phase(uint32_t (&warps)[gpu::kThreads / gpu::kLanes], const Work& work) {
    bool any = false;
    phase([&](uint32_t t) { any = work(t) || any; });
    for (uint32_t& warp : warps) warp = any ? 1 : 0;
    return any;
  }

  /// Teams of one thread, which has nobody to exchange values with.
  struct Team {
    uint32_t lanes = 1;
    template <typename T>
    T exchange(T value, uint32_t) const {
      return value;
    }
  };
  template <typename Work>
  void team_phase(uint32_t, const Work& work) {
    phase([&](uint32_t t) { work(t, Team{}); });
  }
};

/// A warp whose lanes take turns, the last one first.
struct HostWarp {
  template <typename T>
  struct Own {
    T values[gpu::kLanes];
    T& operator()(uint32_t lane) { return values[lane]; }
    const T& operator()(uint32_t lane) const { return values[lane]; }
  };

  template <typename Work>
  void each(const Work& work) {
    for (uint32_t lane = gpu::kLanes; lane-- > 0;) work(lane);
  }

  template <typename T>
  Own<T> exchange(const Own<T>& own, uint32_t step) const {
    Own<T> others;
    for (uint32_t lane = 0; lane < gpu::kLanes; ++lane) others(lane) = own(lane ^ step);
    return others;
  }
  template <typename T>
  Own<T> take(const Own<T>& own, const Own<uint32_t>& from) const {
    Own<T> others;
    for (uint32_t lane = 0; lane < gpu::kLanes; ++lane)
      others(lane) = own(from(lane) % gpu::kLanes);
    return others;
  }
  void share() const {}
};

/// As gpu::encode_stage and the others.
template <typename Call, typename Families>
using Stage = void (*)(HostBlock&, gpu::BlockMemory<Families>&, const Call&, uint64_t);

/// The table of all runs, for thread blocks. The table of runs outlives it.
class View {
 public:
  explicit View(const gpu::RunTable& table)
      : image_(table.image()), tables_(table.tables(data())) {}
  const gpu::Tables& tables() const { return tables_; }
  const gpu::Table& all() const { return tables_.all; }

 private:
  const std::byte* data() const { return image_.data(); }
  std::vector<std::byte> image_;
  gpu::Tables tables_;
};

/// A launch with n tiles (or long buckets), the last one first.
template <typename Families = gpu::KernelFamilies, typename Call>
void launch(const Call& call, uint64_t n, Stage<Call, Families> stage) {
  auto memory = std::make_unique<gpu::BlockMemory<Families>>();
  HostBlock block;
  for (uint64_t i = n; i-- > 0;) stage(block, *memory, call, i);
}

/// The same for blocks of the error-bounded compressors, whose memory begins as anything.
template <typename Call, typename Memory>
void launch_blocks(const Call& call, void (*stage)(HostBlock&, Memory&, const Call&, uint64_t)) {
  auto memory = std::make_unique<Memory>();
  HostBlock block;
  for (uint64_t i = call.count; i-- > 0;) {
    std::memset(static_cast<void*>(memory.get()), 0xa5, sizeof(Memory));
    stage(block, *memory, call, i);
  }
}

/// The same for warps: work(warp, memory, call, item) on all items of the call's table.
struct InTurns {
  template <typename Family, typename Call, typename Work>
  static void launch(const Call& call, const Work& work) {
    auto memory = std::make_unique<typename Family::Memory>();
    HostWarp warp;
    for (uint64_t i = call.table.tiles << call.table.split; i-- > 0;) {
      work(warp, *memory, call, i);
    }
  }
};

/// Calls work(Family{}) for the family of this number among those with kernels of warps.
template <typename Work>
void with_warp_family(uint8_t family, const Work& work) {
  if (family == gpu::maxmin::Warps::kFamily) return work(gpu::maxmin::Warps{});
  if (family == gpu::rotated::Warps::kFamily) return work(gpu::rotated::Warps{});
  if (family == gpu::trellis::Warps::kFamily) return work(gpu::trellis::Warps{});
  std::abort();
}

/// Calls work(std::integral_constant<gpu::Type, type>{}).
template <typename Work>
void with_type(gpu::Type type, const Work& work) {
  using gpu::Type;
  switch (type) {
    case Type::kFloat32:
      return work(std::integral_constant<Type, Type::kFloat32>{});
    case Type::kFloat16:
      return work(std::integral_constant<Type, Type::kFloat16>{});
    case Type::kBFloat16:
      return work(std::integral_constant<Type, Type::kBFloat16>{});
  }
}

/// `Lanes`: how lanes run, InTurns or as tests/native/support/lane_threads.h has it.
template <typename Family, typename Lanes = InTurns>
void encode_by_warps(const gpu::EncodeCall& call) {
  Lanes::template launch<Family>(call, [](auto& warp, auto& memory, const auto& c, uint64_t item) {
    if constexpr (requires { Family::encode(warp, memory, c, item); }) {
      Family::encode(warp, memory, c, item);  // of any type
    } else {
      with_type(c.type, [&](auto type) { Family::template encode<type()>(warp, memory, c, item); });
    }
  });
}
template <typename Family, typename Lanes = InTurns>
void decode_by_warps(const gpu::DecodeCall& call) {
  Lanes::template launch<Family>(call, [](auto& warp, auto& memory, const auto& c, uint64_t item) {
    if constexpr (requires { Family::decode(warp, memory, c, item); }) {
      Family::decode(warp, memory, c, item);  // of any type
    } else {
      with_type(c.type, [&](auto type) { Family::template decode<type()>(warp, memory, c, item); });
    }
  });
}
template <typename Family, typename Lanes = InTurns>
void sum_by_warps(const gpu::SumCall& call) {
  Lanes::template launch<Family>(call, [](auto& warp, auto& memory, const auto& c, uint64_t item) {
    Family::sum(warp, memory, c, item);
  });
}

/// What the launches of gpu::KernelModule do, without feedback: warps first, then thread blocks. `split`: as
/// the tables have it.
inline void encode_all(const gpu::Tables& tables, gpu::EncodeCall call, uint32_t split = 0) {
  for (const gpu::Tables::OfWarps& list : tables.warps) {
    call.table = list.table;
    call.table.split = split;
    with_warp_family(list.family, [&](auto family) { encode_by_warps<decltype(family)>(call); });
  }
  call.table = tables.rest;
  launch(call, call.table.long_buckets, gpu::long_encode_stage);
  launch(call, call.table.tiles, gpu::encode_stage);
}
inline void decode_all(const gpu::Tables& tables, gpu::DecodeCall call, uint32_t split = 0) {
  for (const gpu::Tables::OfWarps& list : tables.warps) {
    call.table = list.table;
    call.table.split = split;
    with_warp_family(list.family, [&](auto family) { decode_by_warps<decltype(family)>(call); });
  }
  call.table = tables.rest;
  launch(call, call.table.tiles, gpu::decode_stage);
}
inline void sum_all(const gpu::Tables& tables, gpu::SumCall call, uint32_t split = 0) {
  for (const gpu::Tables::OfWarps& list : tables.warps) {
    call.table = list.table;
    call.table.split = split;
    with_warp_family(list.family, [&](auto family) { sum_by_warps<decltype(family)>(call); });
  }
  call.table = tables.rest;
  if (call.encoded != nullptr) launch(call, call.table.long_buckets, gpu::long_sum_stage);
  launch(call, call.table.tiles, gpu::sum_stage);
}

}  // namespace cgx::device
