#include "reduce/plan/cache.h"

#include <functional>

#include "reduce/plan/choose.h"

namespace cgx {
namespace {

// A script that reduces ever new shapes must not grow the cache for ever.
constexpr size_t kMostPlans = 512;

}  // namespace

size_t PlanCache::PlanKeyHash::operator()(const PlanKey& key) const {
  size_t hash = static_cast<size_t>(key.operation) * 31 + static_cast<size_t>(key.dtype);
  hash = hash * 31 + static_cast<size_t>(key.combine);
  hash = hash * 1000003 + static_cast<size_t>(key.root + 1);
  for (const Layer& layer : key.layers) {
    hash = hash * 1000003 + layer.count;
    hash = hash * 1000003 + std::hash<const void*>()(layer.codec.get());
    hash = hash * 1000003 + static_cast<size_t>(layer.first.value_or(0));
  }
  return hash;
}

template <typename Build>
std::shared_ptr<const Plan> PlanCache::cached(PlanKey key, const Build& build) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
  }
  std::shared_ptr<const Plan> plan = build();
  std::lock_guard<std::mutex> lock(mutex_);
  if (plans_.size() >= kMostPlans) plans_.clear();
  plans_.emplace(std::move(key), plan);
  return plan;
}

std::shared_ptr<const Plan> PlanCache::all_reduce(const std::vector<Layer>& layers, DType dtype,
                                                  Combine combine) {
  return cached(PlanKey{Operation::kAllReduce, dtype, combine, -1, layers},
                [&] { return make_all_reduce_plan(options_, topology_, layers, dtype, combine); });
}

std::shared_ptr<const Plan> PlanCache::shards(Operation operation, size_t shard,
                                              const std::shared_ptr<const Codec>& codec,
                                              DType dtype, Combine combine) {
  return cached(PlanKey{operation, dtype, combine, -1, {{shard, codec}}}, [&] {
    return make_shards_plan(options_, topology_, operation, shard, codec, dtype, combine);
  });
}

std::shared_ptr<const Plan> PlanCache::reduce(size_t values, DType dtype, Combine combine,
                                              int root) {
  return cached(PlanKey{Operation::kReduce, dtype, combine, root, {{values, raw_codec()}}}, [&] {
    return make_reduce_plan(options_, topology_, values, dtype, combine, root);
  });
}

}  // namespace cgx
