// c10d objects seen through the engine's torch-free interfaces.
#pragma once

#include <functional>
#include <memory>

#include "backend/adapters/torch_types.h"
#include "comm/relay/point_to_point.h"
#include "comm/rendezvous.h"

namespace cgx {

/// Keys get the prefix "cgx/"; the store itself is already private to the group. `look`, if there
/// is one, is called again and again while a key is waited for; what it throws ends the wait.
std::unique_ptr<Rendezvous> make_store_rendezvous(StorePtr store,
                                                  std::function<void()> look = nullptr);

/// Makes a Gloo backend drop all its connections, so that every wait on them, here and on the
/// peers, ends: what Gloo itself does after a wait that timed out. It has no other way.
void close_connections(c10d::Backend& gloo);

/// Sends and receives over an inner backend that has no other point-to-point traffic.
std::shared_ptr<PointToPoint> make_c10d_point_to_point(BackendPtr inner);

}  // namespace cgx
