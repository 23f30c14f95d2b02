// The kernels' stages on the host: a thread block whose threads take turns. Barriers and warps are
// not tested so.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/families/gpu_list.h"
#include "codec/gpu/run_table.h"
#include "codec/gpu/stages.h"

namespace cgx::device {

struct HostBlock {
  struct Kept {
    float values[gpu::kThreads][gpu::kTile / gpu::kThreads];
    float& at(uint32_t t, uint32_t k) { return values[t][k]; }
  };

  /// Backwards: a phase whose threads depend on each other would show.
  template <typename Work>
  void phase(const Work& work) {
    for (uint32_t t = gpu::kThreads; t-- > 0;) work(t);
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

/// As gpu::encode_stage and the others.
template <typename Call, typename Families>
using Stage = void (*)(HostBlock&, gpu::BlockMemory<Families>&, const Call&, uint64_t);

inline gpu::Table view(const gpu::RunTable& table) {
  return {table.runs().data(), table.tiles(), table.long_buckets(),
          static_cast<uint32_t>(table.runs().size())};
}

/// A launch with n tiles (or long buckets), the last one first.
template <typename Families = gpu::KernelFamilies, typename Call>
void launch(const Call& call, uint64_t n, Stage<Call, Families> stage) {
  auto memory = std::make_unique<gpu::BlockMemory<Families>>();
  HostBlock block;
  for (uint64_t i = n; i-- > 0;) stage(block, *memory, call, i);
}

}  // namespace cgx::device
