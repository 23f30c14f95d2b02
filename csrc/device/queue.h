// A stream of one GPU with its context: where a group's work on that GPU goes, in order.
//
// Functions make the context current for as long as they run, whatever is current on the thread.
// Not thread-safe: one thread at a time puts work on it.
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
  /// `between_processes`: others can open it by its handle.
  explicit OwnEvent(const Driver& driver, bool between_processes = false);
  /// Another process's.
  OwnEvent(const Driver& driver, const IpcEvent& handle);
  ~OwnEvent();
  OwnEvent(OwnEvent&& other) noexcept;
  OwnEvent& operator=(OwnEvent&& other) = delete;

  Event get() const { return event_; }
  /// Whoever calls this destroys it.
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

  /// The calling thread waits until an event that was recorded has happened. TimeoutError that
  /// names `what`.
  void synchronize(const OwnEvent& event, const char* what, const Deadline& deadline) const;
  /// ... until all that was put on the stream is done.
  void synchronize(const char* what, const Deadline& deadline) const;
  /// The same for destructors of what the stream uses. False if the stream is not done after
  /// kGrace, or its context is gone. While a stream hangs (a peer that died may never do what an
  /// event stands for), nothing of its context is freed: the driver would wait for ever.
  bool finish(const char* what) const noexcept;
  static constexpr std::chrono::seconds kGrace{10};

 private:
  const Driver& driver_;
  const Context context_;
  const Stream stream_;
};

/// Destroys what belongs to a context, with it current. Not if it is gone, and with it all that
/// belonged to it, nor while a stream of it hangs.
void release_in(const Driver& driver, Context context, const std::function<void()>& destroy);

/// The context that is current on this thread; ResourceError if none is.
Context current_context(const Driver& driver);

/// Pinned host memory, 64-byte aligned; freed in its context.
std::shared_ptr<std::byte> allocate_pinned(const Driver& driver, size_t bytes);
/// Memory of the device; freed in its context.
std::shared_ptr<std::byte> allocate_device(const Driver& driver, size_t bytes);

}  // namespace cgx::device
