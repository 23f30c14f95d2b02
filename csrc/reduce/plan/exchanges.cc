#include "reduce/plan/exchanges.h"

#include <algorithm>

#include "comm/messages.h"

namespace cgx {

size_t bundle_stride(const Chunk& chunk) { return (chunk.payload_bytes + 63) / 64 * 64; }

size_t bundle_bytes(const Shard& shard, int hosts) {
  if (shard.chunks.size() == 1) {
    return bundle_stride(shard.chunks.front()) * static_cast<size_t>(hosts);
  }
  size_t bytes = 0;
  for (const Chunk& chunk : shard.chunks) bytes += bundle_stride(chunk);
  return bytes;
}

size_t Chunk::message_bytes() const {
  return empty() ? 0 : Messages::kPayloadOffset + payload_bytes;
}

Exchanges exchanges_of(const Round& round, const Plan& plan, int hosts) {
  Exchanges most;
  const bool gather = plan.operation == Operation::kAllGather;
  size_t scatter = 0;
  for (const Shard& shard : round.shards) {
    size_t all = 0, longest = 0, delivered = 0;
    for (const Chunk& chunk : shard.chunks) {
      all += chunk.message_bytes();
      longest = std::max(longest, chunk.message_bytes());
      if (plan.operation != Operation::kReduceScatter) continue;
      for (const Run& run : chunk.runs) {
        delivered += Messages::kPayloadOffset + run.count * size_of(plan.dtype);
      }
    }
    // In an all-gather a rank sends its own chunk, to all.
    most.cross = std::max(most.cross, gather ? longest : all);
    if (!plan.two_levels) continue;
    if (!gather) scatter += shard.intra.message_bytes();
    // A reduce delivers a shard to the root as its values.
    const size_t bundle = plan.operation == Operation::kReduce
                              ? shard.intra.message_bytes()
                              : Messages::kPayloadOffset + bundle_bytes(shard, hosts);
    most.intra = std::max({most.intra, scatter, bundle, delivered});
  }
  return most;
}

}  // namespace cgx
