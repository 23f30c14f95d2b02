#include "reduce/plan/plan.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"
#include "reduce/plan/cut.h"
#include "reduce/plan/exchanges.h"
#include "reduce/plan/hash.h"
#include "reduce/plan/rounds.h"

namespace cgx {
namespace {

void finish(Plan& plan, const PlanSpace& space) {
  for (const Layer& layer : plan.layers) {
    plan.compressed = plan.compressed || layer.codec != raw_codec();
  }
  for (const Round& round : plan.rounds) {
    const Exchanges longest = exchanges_of(round, plan, space.topology.host_count());
    plan.cross_bytes = std::max(plan.cross_bytes, longest.cross);
    plan.intra_bytes = std::max(plan.intra_bytes, longest.intra);
  }
  plan.hash = plan_hash(plan, space);
}

// An all-gather moves exact values of any type, and combines none.
void check_combination(const Plan& plan) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(str_of(name_of(plan.operation), " ", name_of(plan.combine), " of ",
                             name_of(plan.dtype), " values: ", why));
  };
  const Layer* compressed = plan.first_compressed();
  if (compressed != nullptr && !plan.sums_in_float32()) {
    refuse(str_of("the codec ", compressed->codec->describe(),
                  " is for float32, float16 and bfloat16 values and their sums"));
  }
  if (plan.operation == Operation::kAllGather) return;
  if (!kReduced.has(plan.dtype)) refuse("allowed types: " + kReduced.text());
  const DTypeKind kind = kind_of(plan.dtype);
  const bool bits = plan.combine >= Combine::kBitAnd;
  if (bits && kind != DTypeKind::kInteger && kind != DTypeKind::kBool) {
    refuse("operations on bits are for integers and bool");
  }
  if (kind == DTypeKind::kComplex && plan.combine != Combine::kSum) {
    refuse("complex values can only be summed");
  }
}

std::shared_ptr<Plan> start_plan(Operation operation, Algorithm algorithm, DType dtype,
                                 const Topology& topology, Combine combine) {
  static std::atomic<uint64_t> plans{0};
  auto plan = std::make_shared<Plan>();
  plan->serial = ++plans;
  plan->operation = operation;
  plan->algorithm = algorithm;
  plan->dtype = dtype;
  plan->combine = combine;
  plan->size = topology.size();
  plan->two_levels = topology.two_levels();
  return plan;
}

}  // namespace

const Layer* Plan::first_compressed() const {
  for (const Layer& layer : layers) {
    if (layer.codec != raw_codec()) return &layer;
  }
  return nullptr;
}

size_t one_shot_payload_bytes(const std::vector<Layer>& layers, DType dtype) {
  size_t bytes = 0;
  for (const Layer& layer : layers) {
    if (layer.count > 0) {
      bytes = align_run(bytes) + layer.codec->encoded_bytes(layer.count, dtype);
    }
  }
  return bytes;
}

void check_total(const std::vector<Layer>& layers, size_t values) {
  size_t left = values;
  for (const Layer& layer : layers) {
    if (layer.count > left)
      throw ConfigError(str_of("the layers have more than ", values, " values"));
    left -= layer.count;
  }
  if (left > 0)
    throw ConfigError(str_of("the layers have ", values - left, " of ", values, " values"));
}

std::shared_ptr<const Plan> plan_all_reduce(std::vector<Layer> layers, DType dtype,
                                            Algorithm algorithm, const PlanSpace& space,
                                            Combine combine) {
  auto plan = start_plan(Operation::kAllReduce, algorithm, dtype, space.topology, combine);
  plan->layers = std::move(layers);
  check_combination(*plan);
  for (const Layer& layer : plan->layers) plan->values += layer.count;
  cut_layers(*plan, space);
  finish(*plan, space);
  return plan;
}

std::shared_ptr<const Plan> plan_reduce(size_t values, DType dtype, Combine combine, int root,
                                        Algorithm algorithm, const PlanSpace& space) {
  auto plan = start_plan(Operation::kReduce, algorithm, dtype, space.topology, combine);
  if (root < 0 || root >= plan->size) {
    throw ConfigError(
        str_of("reduce: root rank ", root, " is not in the group; allowed: 0 to ", plan->size - 1));
  }
  plan->root = root;
  plan->layers = {{values, raw_codec()}};
  plan->values = values;
  check_combination(*plan);
  cut_layers(*plan, space);
  finish(*plan, space);
  return plan;
}

std::shared_ptr<const Plan> plan_shards(Operation operation, size_t shard,
                                        std::shared_ptr<const Codec> codec, DType dtype,
                                        const PlanSpace& space, Combine combine) {
  auto plan =
      start_plan(operation, Algorithm::kScatterReduceAllGather, dtype, space.topology, combine);
  const auto size = static_cast<size_t>(plan->size);
  plan->values = shard * size;
  plan->layers.assign(size, Layer{shard, codec});
  check_combination(*plan);
  cut_shards(*plan, shard, *codec, space);
  finish(*plan, space);
  return plan;
}

std::shared_ptr<const Plan> plan_move(Operation operation, DType dtype, size_t values, int root,
                                      std::vector<Layer> layers, const Topology& topology) {
  const bool tree = operation == Operation::kBroadcast || operation == Operation::kBarrier;
  auto plan = start_plan(operation, tree ? Algorithm::kTree : Algorithm::kPairwise, dtype, topology,
                         Combine::kSum);
  plan->values = values;
  plan->root = root;
  plan->layers = std::move(layers);
  plan->compressed = !plan->layers.empty();
  plan->hash = move_hash(*plan);
  return plan;
}

}  // namespace cgx
