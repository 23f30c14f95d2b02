// The wait that the thread of a relay is in, for the thread that watches it.
//
// A library may lose the error of a transfer; the wait then lasts until the deadline. Gloo loses the
// error of a receive if the connection breaks while the message is half read, and the error of a
// send if Gloo's own thread fails to write it. So a second thread checks the connection, and this
// class decides when the wait is given up.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

namespace cgx::relay {

/// Thread-safe. One thread waits, another one watches.
class CurrentWait {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long a wait may go on after its connection was seen broken. The transfer may have ended
  /// well before the peer closed the connection, and the waiting thread not run since.
  static constexpr std::chrono::milliseconds kPatience{1000};

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
    broken_since_.reset();
  }

  void end() {
    std::lock_guard lock(mutex_);
    under_way_ = false;
  }

  /// The wait that is under way.
  std::optional<Wait> look() {
    std::lock_guard lock(mutex_);
    return under_way_ ? std::optional(wait_) : std::nullopt;
  }

  /// The connection of a wait has been found broken. True: the wait is to be given up.
  bool give_up(const Wait& seen, Clock::time_point now) {
    std::lock_guard lock(mutex_);
    if (!under_way_ || wait_.number != seen.number) return false;
    if (!broken_since_) broken_since_ = now;
    return now - *broken_since_ >= kPatience;
  }

 private:
  std::mutex mutex_;
  Wait wait_;
  bool under_way_ = false;
  std::optional<Clock::time_point> broken_since_;
};

}  // namespace cgx::relay
