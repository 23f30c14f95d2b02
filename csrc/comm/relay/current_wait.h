// The wait that the thread of a relay is in, for the thread that watches it.
//
// A library may lose the error of a transfer, whose wait then lasts until the deadline. Gloo loses
// it for a send that its own thread writes: that thread learns that the peer is ready, takes the
// send from its queue, and finds the connection broken. So a wait that lasts has the connection to
// its peer looked at; this class decides when, and when the wait is to be given up.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace cgx::relay {

/// Thread-safe. One thread waits, another one watches.
class CurrentWait {
 public:
  using Clock = std::chrono::steady_clock;

  /// A look costs a small message, which the peer keeps: the pauses grow while a wait lasts.
  static constexpr std::chrono::milliseconds kFirstLook{1000}, kLongestPause{10000};

  struct Wait {
    uint64_t number = 0;  // from 1
    int peer = 0;
    const char* what = "";  // as "receiving from"
    Clock::time_point began{};
  };

  void begin(int peer, const char* what, Clock::time_point now) {
    std::lock_guard lock(mutex_);
    wait_ = {wait_.number + 1, peer, what, now};
    under_way_ = true;
    broken_ = false;
    pause_ = kFirstLook;
    next_look_ = now + pause_;
  }

  void end() {
    std::lock_guard lock(mutex_);
    under_way_ = false;
  }

  /// The wait, if the connection to its peer is to be looked at now.
  std::optional<Wait> due(Clock::time_point now) {
    std::lock_guard lock(mutex_);
    if (!under_way_ || now < next_look_) return std::nullopt;
    pause_ = std::min(2 * pause_, kLongestPause);
    next_look_ = now + pause_;
    return wait_;
  }

  /// What the look has found. True: the wait is to be given up, since a look before has found the
  /// connection broken, too. (The first time the transfer may just have ended well, before the peer
  /// closed the connection.)
  bool give_up(const Wait& seen, bool broken) {
    std::lock_guard lock(mutex_);
    if (!under_way_ || wait_.number != seen.number || !broken) return false;
    next_look_ = {};  // the next look is due at once
    return std::exchange(broken_, true);
  }

 private:
  std::mutex mutex_;
  Wait wait_;
  bool under_way_ = false;
  bool broken_ = false;
  std::chrono::milliseconds pause_{};
  Clock::time_point next_look_{};
};

}  // namespace cgx::relay
