// The last collectives of this process, for a look at them after something went wrong.
//
// torch keeps such a record too (its FlightRecorder), but one that only the backends compiled into
// torch can write. This one has the same fields and the same length (TORCH_FR_BUFFER_SIZE, 2000 by
// default, 0 switches it off). Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/work/call_record.h"

namespace cgx {

class FlightRecord {
 public:
  /// One per process, never destroyed.
  static FlightRecord& instance();

  bool enabled() const { return capacity_ > 0; }
  void add(CallRecordPtr record);

  /// Oldest first, each with its number among all calls of the process.
  std::vector<std::pair<size_t, CallRecordPtr>> entries() const;

 private:
  FlightRecord();

  const size_t capacity_;
  mutable std::mutex mutex_;
  size_t added_ = 0;
  std::deque<CallRecordPtr> records_;
};

}  // namespace cgx
