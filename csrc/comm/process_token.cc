#include "comm/process_token.h"

#include <pthread.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace cgx {
namespace {

std::atomic<uint64_t> token{0};

// Runs in forked children, where only async-signal-safe calls are allowed.
void draw_token() {
  uint64_t drawn = 0;
  if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof drawn)) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    drawn = (static_cast<uint64_t>(getpid()) << 40) ^
            static_cast<uint64_t>(now.tv_sec) * 1000000007u ^ static_cast<uint64_t>(now.tv_nsec);
  }
  token.store(drawn | 1, std::memory_order_relaxed);
}

}  // namespace

uint64_t process_token() {
  static const bool drawn = [] {
    draw_token();
    pthread_atfork(nullptr, nullptr, draw_token);
    return true;
  }();
  (void)drawn;
  return token.load(std::memory_order_relaxed);
}

}  // namespace cgx
