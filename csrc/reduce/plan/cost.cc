#include "reduce/plan/cost.h"

#include <algorithm>

#include "base/error.h"

namespace cgx {

PlanCost cost_of(const Plan& plan, const Topology& topology) {
  const bool two_levels = topology.two_levels();
  const double side = two_levels ? topology.host_count() : topology.size();
  const double teams = two_levels ? topology.teams() : 1;
  const double others = (side - 1) / side;
  const double bytes = static_cast<double>(one_shot_payload_bytes(plan.layers, plan.dtype)) / teams;
  PlanCost cost;
  cost.rounds = static_cast<double>(std::max<size_t>(plan.rounds.size(), 1));
  double compressed = 0;
  for (const Layer& layer : plan.layers) {
    if (layer.codec != raw_codec()) compressed += static_cast<double>(layer.count);
  }
  const double own = compressed / teams;  // values that the rank answers for
  switch (plan.operation) {
    case Operation::kReduceScatter:
      cost.steps = 1;
      cost.bytes = others * bytes;
      cost.encoded = cost.decoded = own;
      return cost;
    case Operation::kAllGather:
      cost.steps = 1;
      cost.bytes = others * bytes;
      cost.encoded = own / side;
      cost.decoded = own;
      return cost;
    case Operation::kReduce: {  // of a rank that is not the root
      const bool at_root = plan.algorithm == Algorithm::kOneShot;
      cost.steps = at_root ? 1 : 2;
      cost.bytes = at_root ? bytes : others * bytes + bytes / side;
      return cost;
    }
    default:  // all-reduces
      break;
  }
  switch (plan.algorithm) {
    case Algorithm::kOneShot:
      cost.steps = 1;
      cost.bytes = (side - 1) * bytes;
      cost.encoded = own;
      cost.decoded = side * own;
      break;
    case Algorithm::kScatterReduceAllGather:
      cost.steps = 2;
      cost.bytes = 2 * others * bytes;
      cost.encoded = own + own / side;
      cost.decoded = 2 * own;
      break;
    case Algorithm::kDirect:
      cost.steps = 2;
      cost.bytes = 2 * others * bytes;
      break;
    case Algorithm::kRing:
      cost.steps = 2 * (side - 1);
      cost.bytes = 2 * others * bytes;
      cost.encoded = own + own / side;
      cost.decoded = 2 * own;
      break;
    case Algorithm::kPairwise:
    case Algorithm::kTree:
      throw Error("the cost of a move is not modelled");
  }
  return cost;
}

Work work_of(const Link& link, const PlanCost& cost, const CodecSpeed& codec) {
  return {
      cost.bytes * link.seconds_per_byte,
      cost.encoded * codec.encode + cost.decoded * codec.decode + cost.bytes * link.work_per_byte};
}

double predict(const Link& link, const PlanCost& cost, const CodecSpeed& codec) {
  const Work work = work_of(link, cost, codec);
  return cost.steps * link.latency + std::max(work.wire, work.processor) +
         std::min(work.wire, work.processor) / cost.rounds;
}

}  // namespace cgx
