// A c10d::Store as the engine's rendezvous.
#pragma once

#include <functional>
#include <memory>

#include "backend/adapters/torch_types.h"
#include "comm/rendezvous.h"

namespace cgx {

/// Keys get the prefix "cgx/"; the store itself is already private to the group. `look`, if there
/// is one, is called again and again while a key is waited for; what it throws ends the wait.
std::unique_ptr<Rendezvous> make_store_rendezvous(StorePtr store,
                                                  std::function<void()> look = nullptr);

}  // namespace cgx
