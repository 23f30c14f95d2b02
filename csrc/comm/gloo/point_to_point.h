// Sends and receives over a backend of torch that has them (ProcessGroupGloo): the message library
// below the relay (comm/relay), as comm/mpi's is.
#pragma once

#include <memory>
#include <vector>

#include "comm/gloo/connections.h"
#include "comm/relay/point_to_point.h"

namespace cgx {

/// What one relay uses of a backend that others use too.
struct GlooShare {
  static constexpr int kMost = 8;

  int number = 0;            // 0 to kMost - 1, one per relay: each has tags of its own
  std::vector<int> members;  // the ranks of the backend that the relay joins, in the relay's order
  int rank = 0;              // of this process among them
};

/// Sends and receives of the members of a share. Its abort() closes the connections of all.
std::shared_ptr<PointToPoint> make_c10d_point_to_point(std::shared_ptr<GlooConnections> connections,
                                                       GlooShare share);

/// The same over all ranks of an inner backend that has no other point-to-point traffic.
std::shared_ptr<PointToPoint> make_c10d_point_to_point(c10::intrusive_ptr<c10d::Backend> inner);

}  // namespace cgx
