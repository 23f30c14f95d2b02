// Threads that run tasks: one thread for a group's collectives (order matters), as many as needed
// for callbacks.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"

namespace cgx {

/// Thread-safe. Threads start on demand. Tasks must not throw.
class TaskQueue {
 public:
  using Task = std::function<void()>;

  /// max_threads 1: tasks run in the order of submission. More: a thread for every task that would
  /// otherwise wait, so that a task may block on another one (a callback that waits for a
  /// collective whose completion is a callback again).
  TaskQueue(std::string name, size_t max_threads);
  ~TaskQueue();  // close()s and joins

  /// Refused (returns false) after close(). ResourceError, and the task is not kept: the queue has no
  /// thread, and the system starts none.
  bool submit(Task task);

  /// Runs a task on the calling thread, in its turn, if the queue has nothing else to do: false,
  /// and nothing is done, if it has, or is closed. Only with max_threads 1. What is submitted
  /// meanwhile runs afterwards.
  bool run_here(const Task& task);

  /// Waits until no task is queued or running. False if the deadline passed first.
  bool wait_idle(const Deadline& deadline);

  /// Runs the queued tasks, then ends the threads, and waits for tasks that run in run_here(). No
  /// task may be waiting for something that only the caller can do. A thread of the queue itself,
  /// or a task, may call it: that thread is left to end on its own.
  void close();

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace cgx
