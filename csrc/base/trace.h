// Named ranges of time for a profiler that the embedding program has. None by default.
#pragma once

#include <atomic>

namespace cgx {

struct TraceHooks {
  /// Returns the argument of end(); null if no profiler is active.
  void* (*begin)(const char* name);
  void (*end)(void* range);
};

inline std::atomic<const TraceHooks*>& trace_hooks() {
  static std::atomic<const TraceHooks*> hooks{nullptr};
  return hooks;
}

/// One range: from construction to destruction, on one thread. `name` is a literal.
class TraceRange {
 public:
  explicit TraceRange(const char* name)
      : hooks_(trace_hooks().load(std::memory_order_acquire)),
        range_(hooks_ != nullptr ? hooks_->begin(name) : nullptr) {}
  ~TraceRange() {
    if (range_ != nullptr) hooks_->end(range_);
  }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  const TraceHooks* const hooks_;
  void* const range_;
};

}  // namespace cgx
