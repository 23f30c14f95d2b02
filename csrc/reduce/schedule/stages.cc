#include "reduce/schedule/stages.h"

#include "codec/ops/random.h"

namespace cgx {
namespace {

// The rank in the key. Which rank of a host contributes the host's sum depends on the layout of the
// call. With a step it must not matter, as a resumed training may lay out its first step otherwise.
int source_of(const Call& call, Stage stage) {
  const int rank = call.identity.rank;
  const bool sum_of_host = call.plan.two_levels && call.plan.operation == Operation::kAllReduce &&
                           stage == Stage::kContribution;
  if (!call.identity.key || !sum_of_host) return rank;
  return call.topology.host(call.topology.host_of(rank)).front();
}

}  // namespace

RandomKey key_of(const Call& call, uint64_t seed, Stage stage) {
  const CallIdentity& identity = call.identity;
  const uint64_t number = identity.key ? identity.key->number() : identity.sequence;
  return random_key(seed, number, source_of(call, stage), static_cast<int>(stage));
}

void Stages::add_residual(Call& call, void* data, size_t values) {
  if (call.residual.base == nullptr || values == 0) return;
  // The whole tensor as one exact run, by its places in the residual.
  Chunk all;
  all.runs.push_back({.offset = call.residual.first_value,
                      .count = values,
                      .codec = raw_codec().get(),
                      .payload = 0,
                      .bytes = values * size_of(call.plan.dtype),
                      .packed = 0,
                      .index = 0});
  all.values = values;
  const View view{static_cast<std::byte*>(data), call.residual.first_value, call.plan.dtype, false,
                  true};
  encode_chunk(call, all, view, Stage::kContribution, view.base);
}

}  // namespace cgx
