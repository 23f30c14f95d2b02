// A stream of one GPU with its context: runs a group's work on that GPU, in order.
//
// Functions make the context current while they run, whatever is current on the thread. Not
// thread-safe: one thread at a time enqueues work.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "base/deadline.h"
#include "device/driver.h"

namespace cgx::device {

/// Destroyed in its context. Timing is off.
class OwnEvent {
 public:
  /// between_processes: other processes can open the event by its handle.
  explicit OwnEvent(const Driver& driver, bool between_processes = false);
  /// Opens an event of another process.
  OwnEvent(const Driver& driver, const IpcEvent& handle);
  ~OwnEvent();
  OwnEvent(OwnEvent&& other) noexcept;
  OwnEvent& operator=(OwnEvent&& other) = delete;

  Event get() const { return event_; }
  /// The caller destroys the result.
  Event release() { return std::exchange(event_, nullptr); }

 private:
  const Driver* driver_;
  Context context_;
  Event event_ = nullptr;
};

class Queue {
 public:
  /// In the context that is current now; ResourceError if none is. `stream` outlives the queue.
  Queue(const Driver& driver, Stream stream);

  const Driver& driver() const { return driver_; }
  Context context() const { return context_; }
  Stream stream() const { return stream_; }

  void record(const OwnEvent& event) const;
  void wait_for(const OwnEvent& event) const;
  /// Bytes between memory of the GPU and pinned host memory, or on the GPU.
  void to_host(void* to, const void* from, size_t bytes) const;
  void to_device(void* to, const void* from, size_t bytes) const;
  void copy(void* to, const void* from, size_t bytes) const;

  /// Blocks the calling thread until a recorded event has happened. TimeoutError names `what`.
  void synchronize(const OwnEvent& event, const char* what, const Deadline& deadline) const;
  /// The same for all work of the stream.
  void synchronize(const char* what, const Deadline& deadline) const;
  /// The same for destructors of memory that the stream uses. False if the stream is not done after
  /// kGrace, or its context is gone. While a stream hangs (a dead peer may never record an event),
  /// nothing of its context is freed: the driver would wait forever.
  bool finish(const char* what) const noexcept;
  static constexpr std::chrono::seconds kGrace{10};

 private:
  const Driver& driver_;
  const Context context_;
  const Stream stream_;
};

/// Destroys an object of a context, with the context current. Does nothing if the context is gone,
/// which has destroyed the object too, or while one of its streams hangs.
void release_in(const Driver& driver, Context context, const std::function<void()>& destroy);

/// The context that is current on this thread; ResourceError if none is.
Context current_context(const Driver& driver);

/// Pinned host memory, 64-byte aligned; freed in its context.
std::shared_ptr<std::byte> allocate_pinned(const Driver& driver, size_t bytes);
/// Memory of the device; freed in its context.
std::shared_ptr<std::byte> allocate_device(const Driver& driver, size_t bytes);

}  // namespace cgx::device
