// c10d objects seen through the engine's torch-free interfaces.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/relay/point_to_point.h"
#include "comm/rendezvous.h"

namespace cgx {

/// Keys get the prefix "cgx/"; the store itself is already private to the group. `look`, if there
/// is one, is called again and again while a key is waited for; what it throws ends the wait.
std::unique_ptr<Rendezvous> make_store_rendezvous(c10::intrusive_ptr<c10d::Store> store,
                                                  std::function<void()> look = nullptr);

/// Sends and receives over an inner backend that nobody else uses for point-to-point traffic.
std::shared_ptr<PointToPoint> make_c10d_point_to_point(c10::intrusive_ptr<c10d::Backend> inner);

}  // namespace cgx
