// One call on the streams of a GPU.
//
//   call (caller's thread)     the caller's stream is captured: `ready` is recorded on it, and the
//                              tensors' memory is tied to the side stream
//   run (worker; over communicators in lockstep the caller's thread)
//                              the side stream waits for `ready`; encode, exchange, decode are
//                              put on it; `done` is recorded
//   wait (caller's thread)     the caller's stream waits for `done`
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

namespace cgx {

/// Progress of one call on the streams. Shared by its task and its work.
class GpuCall {
 public:
  /// Records the caller's current stream of the device; ties the memory of `tensors` to `side`.
  GpuCall(c10::Stream side, const std::vector<at::Tensor>& tensors);
  ~GpuCall();
  GpuCall(const GpuCall&) = delete;
  GpuCall& operator=(const GpuCall&) = delete;

  /// While it lives, the calling thread's work goes to the side stream, after the earlier work of
  /// the caller's own stream. When it ends, also by an exception, the whole call is on the side
  /// stream.
  class Turn {
   public:
    /// `call` null: does nothing.
    explicit Turn(GpuCall* call);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    GpuCall* const call_;
    std::optional<c10::StreamGuard> on_side_;
  };

  /// The calling thread's current stream waits until the call is done.
  void make_stream_wait() const;
  /// True once the call is done on the device.
  bool query() const;

  const c10::Stream& side() const { return side_; }

 private:
  const c10::Stream side_;
  std::optional<c10::Event> ready_, done_;  // empty only inside the destructor
};

}  // namespace cgx
