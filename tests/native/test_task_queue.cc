// The queue of a group's calls: one at a time, whoever runs them.
#include <atomic>
#include <chrono>
#include <thread>

#include "backend/work/task_queue.h"
#include "check.h"

namespace cgx::native {
namespace {

TEST(tasks_of_callers_and_of_the_queue_run_one_at_a_time) {
  for (int round = 0; round < 40; ++round) {
    TaskQueue queue("tasks", 1);
    std::atomic<int> inside{0}, ran{0}, together{0}, accepted{0};
    const TaskQueue::Task task = [&] {
      if (inside++ != 0) ++together;
      ++ran;
      --inside;
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i) {
          const bool here = (i + t) % 3 != 0 && queue.run_here(task);
          if (here || queue.submit(task)) ++accepted;
        }
      });
    }
    if (round % 2 == 1) {  // while they are at it
      std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
      queue.close();
    }
    for (std::thread& thread : threads) thread.join();
    queue.close();
    CHECK(together == 0, together, " tasks ran beside another");
    CHECK(ran == accepted, ran, " of ", accepted, " tasks ran");
  }
}

TEST(a_task_that_throws_leaves_the_queue_to_the_next) {
  TaskQueue queue("tasks", 1);
  const std::string text =
      error_of<std::runtime_error>([&] { queue.run_here([] { throw std::runtime_error("it"); }); });
  CHECK(text == "it", text);
  bool ran = false;
  CHECK(queue.run_here([&] { ran = true; }) && ran, "the queue is held");
  queue.close();
}

}  // namespace
}  // namespace cgx::native
