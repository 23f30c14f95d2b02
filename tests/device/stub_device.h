// What the stub driver's handles stand for: memory that processes share, events, and streams that
// are threads. In an unnamed namespace, so that each library made of it has a device of its own.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace {

std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// True where the call is to fail.
template <typename... Args>
bool called(const char* name, const Args&... args) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  static FILE* log = setting("STUB_DRIVER_LOG").empty()
                         ? nullptr
                         : std::fopen(setting("STUB_DRIVER_LOG").c_str(), "a");
  if (log != nullptr) {
    std::fprintf(log, "%s", name);
    (std::fprintf(log, " %lld", static_cast<long long>(args)), ...);
    std::fprintf(log, "\n");
    std::fflush(log);
  }
  return setting("STUB_DRIVER_FAIL") == name;
}

// Counts in shared memory, so that other processes can wait for them.
struct EventState {
  std::atomic<uint64_t> asked, done;
};

// Memory that other processes open through this one's /proc entry: device memory, or the state of
// an event. It has no name of its own, so nothing is left behind by a process that is killed.
struct SharedFile {
  char name[40] = "";  // what the owner opens to others
  int fd = -1;         // the owner's
  void* data = nullptr;
  size_t bytes = 0;

  static SharedFile make(size_t bytes) {
    SharedFile file;
    file.fd = memfd_create("cgx-stub", MFD_CLOEXEC);
    if (file.fd < 0 || ftruncate(file.fd, static_cast<off_t>(bytes)) != 0) return {};
    std::snprintf(file.name, sizeof file.name, "/proc/%d/fd/%d", getpid(), file.fd);
    file.map(file.fd, bytes);
    return file;
  }
  static SharedFile open(const char* name) {
    SharedFile file;
    const int fd = ::open(name, O_RDWR | O_CLOEXEC);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) != 0) return {};
    file.map(fd, static_cast<size_t>(facts.st_size));
    ::close(fd);
    return file;
  }
  void map(int fd, size_t size) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) data = nullptr;
    bytes = size;
  }
  void release(bool own) {
    munmap(data, bytes);
    if (own) ::close(fd);
  }
};

struct Event {
  SharedFile file;
  bool own;
  int number;
  EventState* state() const { return static_cast<EventState*>(file.data); }
  // Work that was put on a stream before the handle went may still use it: it is never unmapped.
  void release() const {
    if (own) ::close(file.fd);
  }
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
