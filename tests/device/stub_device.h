// What the stub driver's handles stand for: memory that processes share (stub_memory.h), events, and
// streams that are threads. In an unnamed namespace, so that each library made of it has a device of
// its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "stub_memory.h"

namespace {

// Counts in shared memory, so that other processes can wait for them.
struct EventState {
  std::atomic<uint64_t> asked, done;
};

struct Event {
  SharedFile file;
  int number;
  EventState* state() const { return static_cast<EventState*>(file.data); }
  // Work that was put on a stream before the handle went may still use it: it is never unmapped.
  void release() const { file.let_go(); }
};

std::atomic<int>& delay_us() {
  static std::atomic<int> pause{
      setting("STUB_DRIVER_DELAY_US").empty() ? 200 : std::stoi(setting("STUB_DRIVER_DELAY_US"))};
  return pause;
}

class Stream {
 public:
  explicit Stream(int number) : number(number), thread_([this] { run(); }) {}
  ~Stream() {
    push(nullptr);
    thread_.join();
  }
  void push(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    ++asked_;
    wake_.notify_one();
  }
  bool idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_ == asked_;
  }
  // For what was pushed until now.
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t number = asked_;
    ended_.wait(lock, [&] { return done_ >= number; });
  }
  const int number;

 private:
  void run() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      if (!task) return;
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us()));
      task();
      std::lock_guard<std::mutex> lock(mutex_);
      ++done_;
      ended_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<std::function<void()>> tasks_;
  uint64_t asked_ = 0, done_ = 0;
  std::thread thread_;
};

struct Device {
  std::mutex mutex;
  std::map<void*, SharedFile> memory;  // own and opened ones, by address
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  Stream* legacy = nullptr;
  int handles = 0;

  Stream* stream(void* handle) {
    if (handle != nullptr) return static_cast<Stream*>(handle);
    std::lock_guard<std::mutex> lock(mutex);
    if (legacy == nullptr) legacy = new Stream(0);
    return legacy;
  }
};
Device& device() {
  static auto* one = new Device;
  return *one;
}

}  // namespace
