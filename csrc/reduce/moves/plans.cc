#include "reduce/moves/plans.h"

#include <functional>
#include <utility>

namespace cgx {
namespace {

// A script that moves ever new shapes must not grow the cache for ever.
constexpr size_t kMostMovePlans = 512;

}  // namespace

size_t MovePlans::KeyHash::operator()(const Key& key) const {
  size_t hash = static_cast<size_t>(key.operation) * 31 + static_cast<size_t>(key.dtype);
  hash = hash * 1000003 + static_cast<size_t>(key.root + 1);
  hash = hash * 1000003 + key.values;
  return hash * 1000003 + std::hash<const void*>()(key.codec.get());
}

Move MovePlans::make(const MoveShape& shape, const Topology& topology) {
  Key key{shape.operation, shape.dtype, shape.values, shape.root, shape.codec};
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto found = plans_.find(key); found != plans_.end()) {
    Move move;
    move.plan = found->second;
    move.codec = shape.codec;
    move.gives.resize(static_cast<size_t>(topology.size()));
    move.gets.resize(move.gives.size());
    return move;
  }
  Move move = make_move(shape, topology);
  if (plans_.size() >= kMostMovePlans) plans_.clear();
  plans_.emplace(std::move(key), move.plan);
  return move;
}

}  // namespace cgx
