// The plans of the moves of one group, made once for each content of a call. On a GPU the tables of
// the runs of a step belong to a plan: a new plan for each call would make new ones.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "reduce/moves/move.h"
#include "reduce/plan/topology.h"

namespace cgx {

/// Thread-safe.
class MovePlans {
 public:
  /// As make_move(); equal shapes, their codecs by address, share a plan. The topology is the
  /// group's.
  Move make(const MoveShape& shape, const Topology& topology);

 private:
  struct Key {
    Operation operation;
    DType dtype;
    size_t values;
    int root;
    std::shared_ptr<const Codec> codec;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };

  std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> plans_;
};

}  // namespace cgx
