#include "bindings/threads.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backend/adapters/gil.h"
#include "base/error.h"
#include "base/threads.h"
#include "tensors/threads.h"

namespace py = pybind11;

namespace cgx {
namespace {

// Threads that call Python functions for CallThreads. A thread stays, waiting without Python's lock:
// starting one takes as long as a block of values. All of this is changed with that lock, which a
// fork cannot find taken by another thread.
class Workers {
 public:
  // Of one CallThreads: runs its function, then counts down.
  struct Job {
    std::function<void()> body;
    std::mutex mutex;
    std::condition_variable ended;
    size_t running = 0;

    void wait() {
      std::unique_lock lock(mutex);
      ended.wait(lock, [this] { return running == 0; });
    }
  };

  // Never destroyed: its threads go on waiting while the process ends.
  static Workers& of_process() {
    static auto* all = new Workers;
    return *all;
  }

  // ResourceError: the system starts no more threads.
  void run(const std::shared_ptr<Job>& job) {
    const bool starts = idle_.empty();
    auto* worker = starts ? new Worker : idle_.back();
    if (!starts) idle_.pop_back();
    begin(*worker, job);
    if (!starts) return;
    try {
      start_thread("a thread of a call", [this, worker] { main(*worker); }).detach();
    } catch (...) {
      end(*worker);
      delete worker;
      throw;
    }
  }

  bool closing() const { return closing_; }

  // The last exit function. Threads that asked for Python's lock after it would be unwound.
  void close() {
    closing_ = true;
    const WithoutGil no_gil;
    while (busy_.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  // In a forked child, which has none of the threads.
  void forget() {
    idle_.clear();
    busy_.store(0);
  }

 private:
  struct Worker {
    std::mutex mutex;
    std::condition_variable wake;
    std::shared_ptr<Job> job;  // null: it waits
  };

  void begin(Worker& worker, const std::shared_ptr<Job>& job) {
    ++busy_;
    {
      const std::lock_guard lock(job->mutex);
      ++job->running;
    }
    const std::lock_guard lock(worker.mutex);
    worker.job = job;
    worker.wake.notify_one();
  }

  void end(Worker& worker) {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(worker.mutex);
      job.swap(worker.job);
    }
    const std::lock_guard lock(job->mutex);
    if (--job->running == 0) job->ended.notify_all();
    --busy_;
  }

  void main(Worker& worker) {
    pthread_setname_np(pthread_self(), "cgx-call");
    const py::gil_scoped_acquire gil;
    while (true) {
      worker.job->body();
      end(worker);
      idle_.push_back(&worker);
      const WithoutGil no_gil;
      std::unique_lock lock(worker.mutex);
      worker.wake.wait(lock, [&] { return worker.job != nullptr; });
    }
  }

  std::vector<Worker*> idle_;
  std::atomic<size_t> busy_{0};
  bool closing_ = false;
};

// Threads of one call, from start() to the end of a `with` statement. They are the engine's: Python's own
// cannot be started while the interpreter runs its exit functions. A handler of a signal runs between
// two steps of Python's code, of which the wait in leave() has none: the statement ends after the
// threads, whatever happens.
class CallThreads {
 public:
  explicit CallThreads(py::function run) : run_(std::move(run)) {
    job_->body = [this] { body(); };
  }
  ~CallThreads() { join(); }
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  size_t start(size_t count) {
    size_t started = 0;
    if (closing()) return started;
    try {
      for (; started < count; ++started) Workers::of_process().run(job_);
    } catch (const ResourceError&) {
      // The caller's thread does their part.
    }
    return started;
  }

  bool stopped() const { return stopped_; }
  static bool closing() { return Workers::of_process().closing(); }

  void leave(const py::object& type) {
    if (!type.is_none()) stopped_ = true;
    join();
    run_ = {};  // which may refer to this
    if (const std::exception_ptr error = std::exchange(error_, nullptr); error && type.is_none()) {
      std::rethrow_exception(error);
    }
  }

 private:
  void body() {
    try {
      run_();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
      stopped_ = true;
    }
  }

  void join() {
    const WithoutGil no_gil;
    job_->wait();
  }

  // Of Python's lock, as all that follows.
  py::object run_;
  std::shared_ptr<Workers::Job> job_ = std::make_shared<Workers::Job>();
  std::exception_ptr error_;
  bool stopped_ = false;
};

// SafeAfterFork for a `with` statement.
class SafeAfterForkScope {
 public:
  void enter() { guard_ = std::make_unique<SafeAfterFork>(); }
  void leave() { guard_.reset(); }

 private:
  std::unique_ptr<SafeAfterFork> guard_;
};

}  // namespace

void bind_threads(py::module_& m) {
  py::class_<CallThreads>(m, "CallThreads", "Threads of one call: they end with its `with` block.")
      .def(py::init<py::function>(), py::arg("run"))
      .def("start", &CallThreads::start, py::arg("count"))
      .def_property_readonly("stopped", &CallThreads::stopped)
      .def_property_readonly_static("closing",
                                    [](const py::object&) { return CallThreads::closing(); })
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](CallThreads& self, const py::object& type, const py::object&,
                          const py::object&) { self.leave(type); });
  py::class_<SafeAfterForkScope>(m, "SafeAfterFork",
                                 "torch's operators on one thread, after a fork.")
      .def(py::init<>())
      .def("__enter__", &SafeAfterForkScope::enter)
      .def("__exit__", [](SafeAfterForkScope& self, const py::object&, const py::object&,
                          const py::object&) { self.leave(); });
  m.def("intra_op_threads", &intra_op_threads,
        "torch.get_num_threads(), also within SafeAfterFork.");
  m.def("thread_limits", &thread_limits, py::arg("root") = "",
        "The limits of processes and threads, for an error message.");
  pthread_atfork(nullptr, nullptr, [] { Workers::of_process().forget(); });
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { Workers::of_process().close(); }));
}

}  // namespace cgx
