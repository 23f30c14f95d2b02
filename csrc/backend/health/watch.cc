#include "backend/health/watch.h"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/threads.h"

namespace cgx {
namespace {

struct State {
  const pid_t process = getpid();
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Watched*> watched;
  Watched* looking_at = nullptr;
  bool running = false;
};

// Never destroyed: groups may live until the end of the process. A forked child, which has no copy
// of the thread and perhaps a locked mutex, gets a new one.
State& state() {
  static std::mutex* making = new std::mutex;
  static State* current = nullptr;
  std::lock_guard<std::mutex> lock(*making);
  if (current == nullptr || current->process != getpid()) current = new State;
  return *current;
}

void run(State& state) {
  pthread_setname_np(pthread_self(), "cgx-watch");
  std::unique_lock<std::mutex> lock(state.mutex);
  while (!state.watched.empty()) {
    state.changed.wait_for(lock, Watch::kPeriod);
    // By value: look() runs without the lock.
    const std::vector<Watched*> all = state.watched;
    for (Watched* one : all) {
      const auto& now = state.watched;
      if (std::find(now.begin(), now.end(), one) == now.end()) continue;
      state.looking_at = one;
      lock.unlock();
      one->look();
      lock.lock();
      state.looking_at = nullptr;
      state.changed.notify_all();
    }
  }
  state.running = false;
}

}  // namespace

void Watch::add(Watched* watched) {
  State& now = state();
  std::lock_guard<std::mutex> lock(now.mutex);
  if (!now.running) {
    start_thread("the thread that watches groups", [&now] { run(now); }).detach();
    now.running = true;  // the thread waits for the lock
  }
  now.watched.push_back(watched);
}

void Watch::remove(Watched* watched) {
  State& now = state();
  std::unique_lock<std::mutex> lock(now.mutex);
  now.watched.erase(std::remove(now.watched.begin(), now.watched.end(), watched),
                    now.watched.end());
  now.changed.notify_all();
  now.changed.wait(lock, [&] { return now.looking_at != watched; });
}

}  // namespace cgx
