// One thread per process that looks, ten times a second, at every group that has collectives under
// way: whether a peer has ended, whether a collective is stuck.
#pragma once

#include <chrono>

namespace cgx {

class Watched {
 public:
  virtual ~Watched() = default;
  /// Must not block.
  virtual void look() = 0;
};

class Watch {
 public:
  static constexpr std::chrono::milliseconds kPeriod{100};

  static void add(Watched* watched);
  /// Waits for the end of a look() that is under way.
  static void remove(Watched* watched);
};

}  // namespace cgx
