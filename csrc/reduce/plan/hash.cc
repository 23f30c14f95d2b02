#include "reduce/plan/hash.h"

#include <string>
#include <type_traits>

namespace cgx {
namespace {

class Hasher {  // FNV-1a over the plan's content
 public:
  template <typename T>
  Hasher& add(const T& value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    auto v = static_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i, v >>= 8) byte(static_cast<unsigned char>(v));
    return *this;
  }
  Hasher& add_text(const std::string& text) {
    for (char c : text) byte(static_cast<unsigned char>(c));
    return add(text.size());
  }
  uint64_t value() const { return hash_; }

 private:
  void byte(unsigned char b) { hash_ = (hash_ ^ b) * 0x100000001b3ULL; }
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace

uint64_t plan_hash(const Plan& plan, const PlanSpace& space) {
  Hasher hasher;
  hasher.add(plan.operation).add(plan.algorithm).add(plan.dtype).add(plan.size);
  hasher.add(plan.layers.size());
  for (const Layer& layer : plan.layers) {
    const CodecSpec& spec = layer.codec->spec();
    hasher.add(layer.count).add_text(spec.name).add(spec.bits).add(spec.bucket_size);
    hasher.add(spec.rounding).add(spec.skip_incomplete_buckets).add(spec.seed);
  }
  // Capacities differ between communicators and configurations; equal rounds are what ranks must
  // agree on.
  hasher.add(plan.rounds.size());
  if (!plan.rounds.empty()) {
    for (const Shard& shard : plan.rounds.front().shards) {
      for (const Chunk& chunk : shard.chunks) hasher.add(chunk.values);
    }
  }
  if (plan.two_levels) {
    hasher.add(space.inner_exact).add(space.topology.teams());
    for (int rank = 0; rank < plan.size; ++rank) hasher.add(space.topology.host_of(rank));
  }
  return hasher.value();
}

}  // namespace cgx
