#include "comm/mpi/transfer.h"

#include "comm/futex.h"

namespace cgx {

bool MpiChannel::abort(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return false;
    reason_ = reason.empty() ? "abort() was called" : reason;
    aborted_.store(true, std::memory_order_release);
  }
  ring();
  return true;
}

std::string MpiChannel::reason() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

void MpiChannel::ring() {
  // Sequentially consistent, as in sleep(): either the sleeper sees the ring or we see the sleeper.
  rung_.fetch_add(1);
  if (sleepers_.load() != 0) futex_wake_all(rung_);
}

void MpiChannel::sleep(uint32_t seen, std::chrono::nanoseconds limit) {
  sleepers_.fetch_add(1);
  if (rung_.load() == seen) futex_wait(rung_, seen, limit);
  sleepers_.fetch_sub(1);
}

}  // namespace cgx
