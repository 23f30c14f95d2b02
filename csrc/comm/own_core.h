// What ranks of one host know of each other's cores while they wait for each other.
//
// Spinning pays while the peer can run at the same time. Where ranks are more than cores, a rank
// that waits lets others run instead.
//
// A thread that is woken may be put on the core of the one that wakes it, and as the two run in
// turns from then on, nothing moves them apart again: each turn costs a switch of threads (20 us), a
// spin would keep the peer from the core, and the other cores stay idle. So ranks publish the core
// that they run on, and whoever finds its peer's on its own leaves.
//
// One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>

namespace cgx {

/// Between two looks of a wait; crowded: ranks are more than cores.
void let_peers_run(bool crowded);

/// How many cores the calling thread may run on.
int available_cores();

class OwnCore {
 public:
  /// Of the calling thread, from 1; 0: unknown.
  static int32_t now();

  /// Moves the calling thread to another of the cores that it may run on, and leaves it free to run
  /// on all of them as before. False: there is no other, or it has moved less than kRest ago.
  bool leave();

 private:
  // A core that is busy with something else is no better: what the thread finds there costs little
  // at this rate, and the kernel balances the rest.
  static constexpr std::chrono::milliseconds kRest{2};

  std::chrono::steady_clock::time_point left_{};
};

}  // namespace cgx
