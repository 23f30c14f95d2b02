// The message library of a relay, shared by its sender and its receiver: every step over the
// library is guarded, and the first failure breaks the whole relay.
//
// Errors: the exception of a step is kept as the cause, with both ranks, the step and how long it
// took; the library is aborted, and all later calls throw the same cause.
// Thread-safety: abort(), check_wait(), failure() and the read-only members from any thread; all
// others from the one that drives the relay.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "comm/failure.h"
#include "comm/relay/current_wait.h"
#include "comm/relay/lengths.h"
#include "comm/relay/point_to_point.h"

namespace cgx::relay {

class GuardedLibrary {
 public:
  /// called: the number under which a rank appears in errors.
  GuardedLibrary(std::shared_ptr<PointToPoint> library, size_t capacity,
                 std::function<int(int)> called);

  PointToPoint& point_to_point() { return *library_; }
  int rank() const { return library_->rank(); }
  int size() const { return library_->size(); }
  const char* name() const { return library_->name(); }
  int called(int rank) const { return called_(rank); }

  /// Bytes of the longest message, and of all messages of one exchange.
  size_t capacity() const { return capacity_; }
  void make_room(size_t bytes) { capacity_ = bytes > capacity_ ? bytes : capacity_; }

  /// True if the library has enough tags for length classes (lengths.h), and for the lanes of
  /// direct transfers.
  bool classes() const { return classes_; }
  bool direct() const { return direct_; }
  /// Tag and room of a message of `bytes` bytes; the tag is `tag_without` without length classes.
  LengthClass class_of(size_t bytes, int tag_without) const {
    return classes_ ? length_class(bytes) : LengthClass{tag_without, bytes};
  }

  /// Since the first begin_call() only the first message of each pair and call is announced.
  bool in_call() const { return in_call_; }
  void begin_call() { in_call_ = true; }

  /// Throws the first cause if the relay is broken.
  void check_usable();
  [[noreturn]] void fail(Failure failure);
  /// Runs a step that concerns `peer`; `what` says in errors what this rank was doing, as
  /// "receiving from".
  template <typename Step>
  auto guarded(int peer, const char* what, Step step);

  /// Waits for a transfer with `peer`, guarded.
  void wait(Pending& pending, int peer, const char* what, const Deadline& deadline);
  /// Breaks the relay if wait() goes on though its connection is broken.
  void check_wait(CurrentWait::Clock::time_point now);

  void abort(const Failure& cause);
  std::optional<Failure> failure();

  /// Lets go of the library; returns whether it is destroyed with that. Nothing else may follow.
  bool close();

 private:
  [[noreturn]] void step_failed(int peer, const char* what, const Deadline& started,
                                const std::exception& error);

  std::shared_ptr<PointToPoint> library_;
  std::function<int(int)> called_;
  size_t capacity_;
  const bool classes_;
  const bool direct_;
  bool in_call_ = false;
  CurrentWait waits_;

  std::atomic<bool> broken_{false};
  std::mutex failure_mutex_;
  std::optional<Failure> first_failure_;
};

template <typename Step>
auto GuardedLibrary::guarded(int peer, const char* what, Step step) {
  const Deadline started;
  try {
    return step();
  } catch (const std::exception& error) {
    step_failed(peer, what, started, error);
  }
}

}  // namespace cgx::relay
