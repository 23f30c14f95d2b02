// Counters of a group's engine. Written by the thread that drives the engine, read by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/trace.h"

namespace cgx {

/// One snapshot. Bytes count every message once per receiver, headers and framing included; seconds
/// are wall time of the driving thread.
struct StatsSnapshot {
  uint64_t calls = 0;
  uint64_t compressed_calls = 0;
  uint64_t values = 0;
  uint64_t bytes_raw = 0;  // size of the tensors handed in
  uint64_t bytes_sent = 0;
  uint64_t bytes_sent_across = 0;  // of those, to other hosts
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;
  uint64_t staging_bytes = 0;  // held after the last call: not a count
  double seconds_encode = 0;
  double seconds_transfer = 0;  // waiting for peers, and copying where the communicator copies
  double seconds_decode = 0;

  StatsSnapshot& operator+=(const StatsSnapshot& other) {
    calls += other.calls;
    compressed_calls += other.compressed_calls;
    values += other.values;
    bytes_raw += other.bytes_raw;
    bytes_sent += other.bytes_sent;
    bytes_sent_across += other.bytes_sent_across;
    bytes_received += other.bytes_received;
    messages_sent += other.messages_sent;
    staging_bytes += other.staging_bytes;
    seconds_encode += other.seconds_encode;
    seconds_transfer += other.seconds_transfer;
    seconds_decode += other.seconds_decode;
    return *this;
  }
};

class Stats {
 public:
  using Nanos = std::chrono::nanoseconds;

  std::atomic<uint64_t> calls{0}, compressed_calls{0}, values{0}, bytes_raw{0};
  std::atomic<uint64_t> bytes_sent{0}, bytes_sent_across{0}, bytes_received{0}, messages_sent{0};
  /// Host memory that communicators hold for messages, without shared memory.
  std::atomic<uint64_t> staging_bytes{0};
  std::atomic<int64_t> encode_ns{0}, transfer_ns{0}, decode_ns{0};

  StatsSnapshot snapshot() const {
    StatsSnapshot s;
    s.calls = calls;
    s.compressed_calls = compressed_calls;
    s.values = values;
    s.bytes_raw = bytes_raw;
    s.bytes_sent = bytes_sent;
    s.bytes_sent_across = bytes_sent_across;
    s.bytes_received = bytes_received;
    s.messages_sent = messages_sent;
    s.staging_bytes = staging_bytes;
    s.seconds_encode = static_cast<double>(encode_ns) * 1e-9;
    s.seconds_transfer = static_cast<double>(transfer_ns) * 1e-9;
    s.seconds_decode = static_cast<double>(decode_ns) * 1e-9;
    return s;
  }

  void reset() {
    calls = compressed_calls = values = bytes_raw = 0;
    bytes_sent = bytes_sent_across = bytes_received = messages_sent = 0;
    encode_ns = transfer_ns = decode_ns = 0;
  }
};

/// A stage of a call: adds its time to one of the counters above, and shows it to a profiler.
class StageTimer {
 public:
  StageTimer(std::atomic<int64_t>& counter, const char* name)
      : range_(name), counter_(counter), start_(std::chrono::steady_clock::now()) {}
  ~StageTimer() {
    auto spent = std::chrono::steady_clock::now() - start_;
    counter_.fetch_add(std::chrono::duration_cast<Stats::Nanos>(spent).count(),
                       std::memory_order_relaxed);
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  TraceRange range_;
  std::atomic<int64_t>& counter_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace cgx
