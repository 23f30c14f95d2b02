// Groups that are left over when Python exits, since nobody has destroyed them.
//
// Threads of a group may drop the last reference to a tensor, for which they take Python's lock. A
// thread that asks for it while Python shuts down is unwound by Python, and the C++ runtime aborts
// the process where a destructor is in the way. So the threads must have ended before.
#pragma once

#include "backend/adapters/torch_types.h"

namespace cgx {

class LeftOver {
 public:
  virtual ~LeftOver() = default;
  /// Ends the threads, unless calls are under way: those would have to be waited for.
  virtual void close_if_idle() = 0;

  /// From now on `group`, which is part of `backend`, is closed at exit.
  static void add(const BackendPtr& backend, LeftOver* group);
  /// The last reference to the backend of this group is gone. Its destructor runs after this.
  static void forget(LeftOver* group);
  /// Python exits.
  static void close_all();
};

}  // namespace cgx
