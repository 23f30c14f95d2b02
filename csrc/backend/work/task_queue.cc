#include "backend/work/task_queue.h"

#include <pthread.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "base/threads.h"

namespace cgx {

// Shared with the threads, so that it exists as long as a thread that outlives the queue (a task
// that destroys its own group).
struct TaskQueue::State {
  std::string name;
  size_t max_threads = 0;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable idle;
  std::deque<Task> tasks;
  std::vector<std::thread> threads;
  size_t waiting = 0;     // threads without a task
  size_t running = 0;     // tasks being run
  std::thread::id guest;  // of a thread that is not the queue's, inside run_here()
  bool closed = false;

  // Tasks of a queue with one thread run one after the other, on whichever thread.
  bool may_run() const { return !tasks.empty() && (max_threads > 1 || running == 0); }
  void ended() {
    --running;
    if (running == 0 && tasks.empty()) idle.notify_all();
  }
};

TaskQueue::TaskQueue(std::string name, size_t max_threads) : state_(std::make_shared<State>()) {
  state_->name = std::move(name);
  state_->max_threads = max_threads;
}

TaskQueue::~TaskQueue() { close(); }

void TaskQueue::run(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), state->name.substr(0, 15).c_str());
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    ++state->waiting;
    state->wake.wait(lock,
                     [&] { return state->may_run() || (state->closed && state->tasks.empty()); });
    --state->waiting;
    if (state->tasks.empty()) return;
    Task task = std::move(state->tasks.front());
    state->tasks.pop_front();
    ++state->running;
    lock.unlock();
    task();
    task = nullptr;  // releases its tensors and Python objects before it counts as done
    lock.lock();
    state->ended();
  }
}

bool TaskQueue::run_here(const Task& task) {
  const std::shared_ptr<State> state = state_;  // the task may destroy the queue
  std::unique_lock<std::mutex> lock(state->mutex);
  if (state->closed || state->running > 0 || !state->tasks.empty()) return false;
  ++state->running;
  state->guest = std::this_thread::get_id();
  lock.unlock();
  // A destructor, however the task ends: while Python shuts down it unwinds threads that ask for
  // its lock.
  struct Leave {
    State& state;
    ~Leave() {
      std::lock_guard<std::mutex> again(state.mutex);
      state.guest = {};
      state.ended();
      if (!state.tasks.empty()) state.wake.notify_one();
      if (state.closed) state.idle.notify_all();
    }
  } const leave{*state};
  task();
  return true;
}

bool TaskQueue::submit(Task task) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->closed) return false;
  state_->tasks.push_back(std::move(task));
  const bool may_start = state_->threads.size() < state_->max_threads;
  if (state_->tasks.size() > state_->waiting && may_start) {
    try {
      state_->threads.push_back(
          start_thread("the thread " + state_->name, [state = state_] { run(state); }));
    } catch (const ResourceError&) {
      if (state_->threads.empty()) {
        state_->tasks.pop_back();
        throw;
      }
      // An existing thread will run the task.
    }
  }
  state_->wake.notify_one();
  return true;
}

bool TaskQueue::wait_idle(const Deadline& deadline) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->idle.wait_for(lock, deadline.left(),
                               [&] { return state_->running == 0 && state_->tasks.empty(); });
}

void TaskQueue::close() {
  std::vector<std::thread> threads;
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->closed = true;
    state_->idle.wait(lock, [&] {
      return state_->guest == std::thread::id() || state_->guest == std::this_thread::get_id();
    });
    threads.swap(state_->threads);
  }
  state_->wake.notify_all();
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

}  // namespace cgx
