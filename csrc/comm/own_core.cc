#include "comm/own_core.h"

#include <sched.h>

#include "comm/futex.h"

namespace cgx {

void let_peers_run(bool crowded) {
  if (crowded) {
    sched_yield();
  } else {
    cpu_relax();
  }
}

int available_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int32_t OwnCore::now() { return sched_getcpu() + 1; }

bool OwnCore::leave() {
  const auto time = std::chrono::steady_clock::now();
  if (time - left_ < kRest) return false;
  left_ = time;
  cpu_set_t all;
  const int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return false;
  cpu_set_t others = all;
  CPU_CLR(here, &others);
  if (sched_setaffinity(0, sizeof others, &others) != 0) return false;
  sched_setaffinity(0, sizeof all, &all);
  return true;
}

}  // namespace cgx
