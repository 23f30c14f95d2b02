#include "reduce/tuning/cost_model.h"

#include <algorithm>

namespace cgx {
namespace {

// Halvings of the interval in which seconds_per_byte is looked for: down to one part in 10^15.
constexpr int kHalvings = 50;

double overlap(const Work& work, double rounds) {
  return std::max(work.wire, work.processor) + std::min(work.wire, work.processor) / rounds;
}

// The wire time with which wire and codec together take `seconds`; 0 if the codec alone takes more.
double wire_within(double seconds, double codec, double rounds) {
  if (seconds <= codec) return 0;
  const double longer = seconds - codec / rounds;  // if the wire is the longer of the two
  return longer >= codec ? longer : (seconds - codec) * rounds;
}

double codec_seconds(const MessageCost& cost, const CodecCost& codec, const CodecCost& raw) {
  const double share = cost.compressed;
  return cost.encoded * (share * codec.encode + (1 - share) * raw.encode) +
         cost.decoded * (share * codec.decode + (1 - share) * raw.decode);
}

}  // namespace

const char* name_of(Decision decision) {
  switch (decision) {
    case Decision::kExact:
      return "exact";
    case Decision::kHalf:
      return "16 bits";
    case Decision::kAsked:
      return "asked";
  }
  return "unknown";
}

MessageCost cost_of(const Plan& plan, const Topology& topology) {
  const bool two_levels = topology.two_levels();
  const double side = two_levels ? topology.host_count() : topology.size();
  const double teams = two_levels ? topology.teams() : 1;
  const double others = (side - 1) / side;
  const double bytes = static_cast<double>(one_shot_payload_bytes(plan.layers, plan.dtype)) / teams;
  MessageCost cost;
  cost.values = static_cast<double>(plan.values);
  cost.rounds = static_cast<double>(std::max<size_t>(plan.rounds.size(), 1));
  double compressed = 0;
  for (const Layer& layer : plan.layers) {
    if (layer.codec != raw_codec()) compressed += static_cast<double>(layer.count);
  }
  cost.compressed = plan.values == 0 ? 0 : compressed / cost.values;
  const double own = cost.values / teams;  // values that the rank answers for
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
    case Operation::kAllReduce:
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
      cost.encoded = 0;
      cost.decoded = own;
      break;
    case Algorithm::kRing:
      cost.steps = 2 * (side - 1);
      cost.bytes = 2 * others * bytes;
      cost.encoded = own + own / side;
      cost.decoded = 2 * own;
      break;
  }
  return cost;
}

Work work_of(const LinkModel& link, const MessageCost& cost, const CodecCost& codec,
             const CodecCost& raw) {
  return {cost.bytes * link.seconds_per_byte,
          codec_seconds(cost, codec, raw) + cost.bytes * link.work_per_byte};
}

double predict(const LinkModel& link, const MessageCost& cost, const CodecCost& codec,
               const CodecCost& raw) {
  return cost.steps * link.latency + cost.values * link.seconds_per_value +
         overlap(work_of(link, cost, codec, raw), cost.rounds);
}

LinkModel fit_link(const LinkProbes& probes, const CodecCost& asked, const CodecCost& raw) {
  LinkModel link;
  link.latency = probes.small.steps > 0 ? probes.small_seconds / probes.small.steps : 0;
  const double exact = std::max(probes.exact_seconds - probes.exact.steps * link.latency, 0.0);
  const double compressed = std::max(probes.asked_seconds - probes.asked.steps * link.latency, 0.0);
  const double exact_codec = codec_seconds(probes.exact, raw, raw);
  const double asked_codec = codec_seconds(probes.asked, asked, raw);
  // For every seconds_per_byte there is a seconds_per_value that makes the exact message right; the
  // more the bytes take, the less the values, and the faster the compressed message would have
  // been.
  const auto per_value = [&](double per_byte) {
    const double rest =
        exact - overlap({probes.exact.bytes * per_byte, exact_codec}, probes.exact.rounds);
    return probes.exact.values > 0 ? std::max(rest, 0.0) / probes.exact.values : 0.0;
  };
  const auto compressed_at = [&](double per_byte) {
    return probes.asked.values * per_value(per_byte) +
           overlap({probes.asked.bytes * per_byte, asked_codec}, probes.asked.rounds);
  };
  double low = 0;
  double high = probes.exact.bytes > 0
                    ? wire_within(exact, exact_codec, probes.exact.rounds) / probes.exact.bytes
                    : 0;
  if (compressed_at(high) >= compressed) {
    low = high;
  } else if (compressed_at(0) > compressed) {
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      (compressed_at(middle) >= compressed ? low : high) = middle;
    }
  }
  link.seconds_per_byte = low;
  link.seconds_per_value = per_value(low);
  return link;
}

Decision fastest(const Estimates& seconds) {
  Decision best = Decision::kAsked;
  double least = -1;
  for (Decision decision : kAllDecisions) {
    const double one = seconds[static_cast<size_t>(decision)];
    if (one >= 0 && (least < 0 || one < kClearly * least)) {
      best = decision;
      least = one;
    }
  }
  return best;
}

}  // namespace cgx
