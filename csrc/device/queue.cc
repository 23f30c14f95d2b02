#include "device/queue.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cgx::device {
namespace {

constexpr unsigned kNoTiming = 2;      // CU_EVENT_DISABLE_TIMING; HIP has the same
constexpr unsigned kInterprocess = 4;  // CU_EVENT_INTERPROCESS
constexpr unsigned kPortable = 1;      // CU_MEMHOSTALLOC_PORTABLE
// A thread polls without a pause for kSpin, then sleeps kNap between two polls.
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kNap{50};

// Pending work of hanging streams, by an event after it. Contexts are checked again, because slow
// work ends at last.
struct Hanging {
  const Driver* driver;
  Context context;
  Event behind;
};
std::mutex hanging_mutex;
std::vector<Hanging>& hanging() {
  static auto* all = new std::vector<Hanging>;
  return *all;
}

bool hangs(Context context) {
  std::lock_guard<std::mutex> lock(hanging_mutex);
  std::erase_if(hanging(), [](const Hanging& one) {
    if (one.driver->push_context(one.context) != kSuccess) return true;
    const bool done = one.driver->query_event(one.behind) != kNotReady;
    if (done) one.driver->destroy_event(one.behind);
    Context popped = nullptr;
    one.driver->pop_context(&popped);
    return done;
  });
  return std::any_of(hanging().begin(), hanging().end(),
                     [context](const Hanging& one) { return one.context == context; });
}

Pointer pointer(const void* memory) { return reinterpret_cast<Pointer>(memory); }

}  // namespace

void release_in(const Driver& driver, Context context, const std::function<void()>& destroy) {
  if (hangs(context) || driver.push_context(context) != kSuccess) return;
  destroy();
  Context popped = nullptr;
  driver.pop_context(&popped);
}

Context current_context(const Driver& driver) {
  Context context = nullptr;
  GPU(driver, current_context, &context);
  if (context == nullptr) {
    throw ResourceError("no context of a GPU is current on this thread");
  }
  return context;
}

OwnEvent::OwnEvent(const Driver& driver, bool between_processes)
    : driver_(&driver), context_(current_context(driver)) {
  GPU(driver, create_event, &event_, kNoTiming | (between_processes ? kInterprocess : 0));
}

OwnEvent::OwnEvent(const Driver& driver, const IpcEvent& handle)
    : driver_(&driver), context_(current_context(driver)) {
  GPU(driver, open_ipc_event, &event_, handle);
}

OwnEvent::~OwnEvent() {
  if (event_ == nullptr) return;
  release_in(*driver_, context_, [&] { driver_->destroy_event(event_); });
}

OwnEvent::OwnEvent(OwnEvent&& other) noexcept
    : driver_(other.driver_),
      context_(other.context_),
      event_(std::exchange(other.event_, nullptr)) {}

Queue::Queue(const Driver& driver, Stream stream)
    : driver_(driver), context_(current_context(driver)), stream_(stream) {}

void Queue::record(const OwnEvent& event) const {
  const InContext here(driver_, context_);
  GPU(driver_, record_event, event.get(), stream_);
}

void Queue::wait_for(const OwnEvent& event) const {
  const InContext here(driver_, context_);
  GPU(driver_, stream_wait_event, stream_, event.get(), 0);
}

void Queue::to_host(void* to, const void* from, size_t bytes) const {
  if (bytes == 0) return;
  const InContext here(driver_, context_);
  GPU(driver_, copy_to_host_async, to, pointer(from), bytes, stream_);
}

void Queue::to_device(void* to, const void* from, size_t bytes) const {
  if (bytes == 0) return;
  const InContext here(driver_, context_);
  GPU(driver_, copy_to_device_async, pointer(to), from, bytes, stream_);
}

void Queue::copy(void* to, const void* from, size_t bytes) const {
  if (bytes == 0) return;
  const InContext here(driver_, context_);
  GPU(driver_, copy_async, pointer(to), pointer(from), bytes, stream_);
}

void Queue::synchronize(const OwnEvent& event, const char* what, const Deadline& deadline) const {
  const InContext here(driver_, context_);
  const auto start = Deadline::Clock::now();
  while (true) {
    const int result = driver_.query_event(event.get());
    if (result != kNotReady) return driver_.check(result, "query_event");
    const auto now = Deadline::Clock::now();
    if (deadline.expired()) {
      throw TimeoutError(
          str_of("waited ", std::chrono::duration<double>(now - start).count(), " s for ", what));
    }
    if (now - start < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

void Queue::synchronize(const char* what, const Deadline& deadline) const {
  const InContext here(driver_, context_);
  const OwnEvent event(driver_);
  record(event);
  synchronize(event, what, deadline);
}

bool Queue::finish(const char* what) const noexcept {
  if (hangs(context_)) return false;
  try {
    const InContext here(driver_, context_);
    OwnEvent behind(driver_);
    record(behind);
    try {
      synchronize(behind, what, Deadline::after(kGrace));
      return true;
    } catch (const TimeoutError&) {
      std::lock_guard<std::mutex> lock(hanging_mutex);
      hanging().push_back({&driver_, context_, behind.release()});
    }
  } catch (const std::exception&) {  // the context is gone
  }
  return false;
}

std::shared_ptr<std::byte> allocate_pinned(const Driver& driver, size_t bytes) {
  if (bytes == 0) return nullptr;
  const Context context = current_context(driver);
  void* memory = nullptr;
  GPU(driver, allocate_pinned, &memory, bytes, kPortable);
  return {static_cast<std::byte*>(memory), [&driver, context](std::byte* old) {
            release_in(driver, context, [&] { driver.free_pinned(old); });
          }};
}

std::shared_ptr<std::byte> allocate_device(const Driver& driver, size_t bytes) {
  if (bytes == 0) return nullptr;
  const Context context = current_context(driver);
  Pointer memory = 0;
  GPU(driver, allocate, &memory, bytes);
  return {reinterpret_cast<std::byte*>(memory), [&driver, context](std::byte* old) {
            release_in(driver, context, [&] { driver.free_memory(pointer(old)); });
          }};
}

}  // namespace cgx::device
