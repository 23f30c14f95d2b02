#include "reduce/plan/hash.h"

#include "base/hash.h"

namespace cgx {
uint64_t plan_hash(const Plan& plan, const PlanSpace& space) {
  Hasher hasher;
  hasher.add(plan.operation).add(plan.algorithm).add(plan.dtype).add(plan.size);
  hasher.add(plan.layers.size());
  for (const Layer& layer : plan.layers) {
    hasher.add(layer.count).add(layer.codec->config().hash());
    if (layer.first) hasher.add(*layer.first);
  }
  if (plan.combine != Combine::kSum) hasher.add(plan.combine);
  if (plan.operation == Operation::kReduce) hasher.add(plan.root);
  // Capacities differ between communicators and configurations; ranks must agree on the rounds.
  hasher.add(plan.rounds.size());
  if (!plan.rounds.empty()) {
    for (const Shard& shard : plan.rounds.front().shards) {
      for (const Chunk& chunk : shard.chunks) hasher.add(chunk.values);
    }
  }
  if (plan.two_levels) {
    hasher.add(space.intra_exact).add(space.topology.teams());
    for (int rank = 0; rank < plan.size; ++rank) hasher.add(space.topology.host_of(rank));
  }
  return hasher.value();
}

uint64_t move_hash(const Plan& plan) {
  Hasher hasher;
  hasher.add(plan.operation).add(plan.dtype).add(plan.size).add(plan.root);
  for (const Layer& layer : plan.layers) hasher.add(layer.codec->config().hash());
  return hasher.value();
}

uint64_t hash_with_step(uint64_t plan_hash, const StepKey& key) {
  return Hasher().add(plan_hash).add(key.step).add(key.tensor).value();
}

}  // namespace cgx
