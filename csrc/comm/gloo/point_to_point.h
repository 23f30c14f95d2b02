// Sends and receives over a backend of torch that has them (ProcessGroupGloo): the message library
// below the relay (comm/relay), as comm/mpi's is.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/relay/point_to_point.h"

namespace cgx {

/// Makes a Gloo backend drop all its connections, so that every wait on them, here and on the
/// peers, ends: what Gloo itself does after a wait that timed out. It has no other way.
void close_connections(c10d::Backend& gloo);

/// Sends and receives over an inner backend that has no other point-to-point traffic.
std::shared_ptr<PointToPoint> make_c10d_point_to_point(c10::intrusive_ptr<c10d::Backend> inner);

}  // namespace cgx
