// What Python says of a simulated group, and what it gets back.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "bindings/codec.h"
#include "reduce/simulate.h"

namespace cgx {

/// (values, codec) of each layer.
using LayerRequests = std::vector<std::pair<size_t, OptionalCodec>>;

/// The keyword arguments that describe a simulated group:
///   ranks or hosts                number of ranks, or the name of every rank's host
///   slot_bytes, inner_bytes       bytes of an exchange inside a host: aimed at, and allowed
///   inner_limit                   bytes of an exchange that holds a single bucket
///   segment_bytes, cross_bytes    bytes of a message and of an exchange across hosts
///   direct or direct_from,        direct transfers, with one level: their least bytes,
///   direct_chunk                  and the bytes of a chunk
///   sequence, or step and tensor  what keys random numbers
/// Errors: ConfigError (a reduction, hosts); pybind11's for a value of another type.
SimulatedGroup group_of(const pybind11::dict& given);

std::vector<Layer> layers_of(const LayerRequests& requests);

/// A snapshot as {"calls": ..., "bytes_sent": ...}; the keys are documented at torch_cgx.stats.
pybind11::dict to_dict(const StatsSnapshot& stats);
/// algorithm, and the stats by rank.
pybind11::dict to_dict(const SimulationResult& result);

}  // namespace cgx
