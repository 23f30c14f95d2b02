// The plans of one group, made once for each content of a call.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reduce/engine_options.h"
#include "reduce/plan/plan.h"
#include "reduce/plan/topology.h"

namespace cgx {

/// Errors: ConfigError if a bucket does not fit into a message; errors are not cached.
/// Thread-safety: all members may be called from any thread.
class PlanCache {
 public:
  /// Both arguments must outlive the cache, unchanged.
  PlanCache(const EngineOptions& options, const Topology& topology)
      : options_(options), topology_(topology) {}

  /// Calls are equal if operation, dtype, op, root, and the layers, their codecs by address, are.
  std::shared_ptr<const Plan> all_reduce(const std::vector<Layer>& layers, DType dtype,
                                         Combine combine);
  std::shared_ptr<const Plan> shards(Operation operation, size_t shard,
                                     const std::shared_ptr<const Codec>& codec, DType dtype,
                                     Combine combine);
  std::shared_ptr<const Plan> reduce(size_t values, DType dtype, Combine combine, int root);

 private:
  struct PlanKey {
    Operation operation;
    DType dtype;
    Combine combine;
    int root;
    std::vector<Layer> layers;
    bool operator==(const PlanKey&) const = default;
  };
  struct PlanKeyHash {
    size_t operator()(const PlanKey& key) const;
  };

  template <typename Build>
  std::shared_ptr<const Plan> cached(PlanKey key, const Build& build);

  const EngineOptions& options_;
  const Topology& topology_;
  std::mutex mutex_;
  std::unordered_map<PlanKey, std::shared_ptr<const Plan>, PlanKeyHash> plans_;
};

}  // namespace cgx
