// Cuts the values of a plan into rounds, shards and chunks, as few as the communicators have room for.
#pragma once

#include <cstddef>

#include "codec/codec.h"
#include "reduce/plan/plan.h"

namespace cgx {

/// The rounds of a plan whose layers cover the tensor: of an all-reduce or a reduce. ConfigError: a
/// bucket fits into no message.
void cut_layers(Plan& plan, const PlanSpace& space);

/// The rounds of a plan in which each rank owns `shard` values: of a reduce-scatter or an all-gather.
/// ConfigError as above.
void cut_shards(Plan& plan, size_t shard, const Codec& codec, const PlanSpace& space);

}  // namespace cgx
