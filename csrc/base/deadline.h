// Points in time after which a wait gives up.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace cgx {

/// Text for error messages: "0.21 s".
inline std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", seconds);
  return text;
}

/// Value type; safe to copy between threads. Default-constructed: never expires (used by tests
/// only; every wait of the backend carries the group's or the call's timeout).
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  Deadline() : at_(Clock::time_point::max()), start_(Clock::now()) {}

  static Deadline after(std::chrono::nanoseconds timeout) {
    Deadline deadline;
    // Timeouts of centuries mean "never"; adding them to now() would overflow.
    if (timeout < std::chrono::hours(24 * 365 * 50)) deadline.at_ = deadline.start_ + timeout;
    return deadline;
  }

  bool expired() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }

  /// Time left, never negative; capped so that it can be passed to any system call.
  std::chrono::nanoseconds left() const {
    if (at_ == Clock::time_point::max()) return std::chrono::hours(24);
    auto left = at_ - Clock::now();
    if (left < Clock::duration::zero()) left = Clock::duration::zero();
    return left < std::chrono::hours(24) ? std::chrono::nanoseconds(left) : std::chrono::hours(24);
  }

  /// Seconds since the deadline was set.
  double elapsed_seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  std::string elapsed_text() const { return seconds_text(elapsed_seconds()); }

 private:
  Clock::time_point at_;
  Clock::time_point start_;
};

}  // namespace cgx
