#include "bindings/threads.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "backend/adapters/gil.h"
#include "backend/adapters/torch_threads.h"
#include "base/error.h"
#include "base/threads.h"

namespace py = pybind11;

namespace cgx {
namespace {

// Threads of all CallThreads, and whether the interpreter ends. Threads must end before it does, as
// it may unwind those that go on; changed with Python's lock, but for a thread's end.
struct AllThreads {
  std::atomic<int> alive{0};
  std::atomic<bool> closing{false};
};
AllThreads all_threads;

// The last exit function: what the others start has ended, and only daemons are in a call.
void close_threads() {
  all_threads.closing.store(true, std::memory_order_relaxed);
  const WithoutGil no_gil;
  while (all_threads.alive.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Threads that call a Python function, from start() to the end of a `with` block. They are the
// engine's: Python's own cannot be started while the interpreter runs its exit functions. A handler
// of a signal runs between two steps of Python's code, of which the wait in leave() has none: the
// block ends after the threads, whatever happens.
class CallThreads {
 public:
  explicit CallThreads(py::function run) : run_(std::move(run)) {}
  ~CallThreads() { join(); }
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  size_t start(size_t count) {
    if (closing()) return 0;
    threads_.reserve(threads_.size() + count);
    size_t started = 0;
    try {
      for (; started < count; ++started) {
        const auto alive = std::make_shared<Alive>();
        threads_.push_back(start_thread("a thread of a call", [this, alive] { body(); }));
      }
    } catch (const ResourceError&) {
      // The caller's thread does their part.
    }
    return started;
  }

  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  static bool closing() { return all_threads.closing.load(std::memory_order_relaxed); }

  void leave(const py::object& type) {
    if (!type.is_none()) stopped_.store(true, std::memory_order_relaxed);
    join();
    run_ = {};  // which may refer to this
    if (const std::exception_ptr error = std::exchange(error_, nullptr); error && type.is_none()) {
      std::rethrow_exception(error);
    }
  }

 private:
  struct Alive {
    Alive() { ++all_threads.alive; }
    ~Alive() { --all_threads.alive; }
    Alive(const Alive&) = delete;
    Alive& operator=(const Alive&) = delete;
  };

  void body() {
    pthread_setname_np(pthread_self(), "cgx-call");
    const py::gil_scoped_acquire gil;
    try {
      run_();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
      stopped_.store(true, std::memory_order_relaxed);
    }
  }

  void join() {
    const WithoutGil no_gil;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  py::object run_;
  std::vector<std::thread> threads_;
  std::exception_ptr error_;  // of Python's lock
  std::atomic<bool> stopped_{false};
};

// SafeAfterFork for a `with` block.
class SafeAfterForkBlock {
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
  py::class_<SafeAfterForkBlock>(m, "SafeAfterFork",
                                 "torch's operators on one thread, after a fork.")
      .def(py::init<>())
      .def("__enter__", &SafeAfterForkBlock::enter)
      .def("__exit__", [](SafeAfterForkBlock& self, const py::object&, const py::object&,
                          const py::object&) { self.leave(); });
  m.def("intra_op_threads", &intra_op_threads,
        "torch.get_num_threads(), also within SafeAfterFork.");
  m.def("thread_limits", &thread_limits, py::arg("root") = "",
        "The limits of processes and threads, for an error message.");
  // A forked child has none of the threads.
  pthread_atfork(nullptr, nullptr, [] { all_threads.alive.store(0); });
  py::module_::import("atexit").attr("register")(py::cpp_function(&close_threads));
}

}  // namespace cgx
