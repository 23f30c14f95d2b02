#include "tensors/threads.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/threads.h"

namespace cgx {
namespace {

// Values for which waking another thread pays.
constexpr size_t kPartValues = 1 << 16;

// What intra_op_threads() was outside of SafeAfterFork; 0: this thread is not within.
thread_local int threads_outside = 0;

// Calls body(0) ... body(parts - 1) on the caller's thread and on new ones, as far as the system
// starts them.
void run_on_new_threads(size_t threads, size_t parts, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    try {
      for (size_t part = next++; part < parts; part = next++) body(part);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      next = parts;
    }
  };
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    while (others.size() + 1 < std::min(threads, parts)) {
      others.push_back(start_thread("a thread of a loop", work));
    }
  } catch (const ResourceError&) {
    // The others do it all.
  }
  work();
  for (std::thread& other : others) other.join();
  if (first) std::rethrow_exception(first);
}

class TorchThreads final : public Parallel {
 public:
  int threads() const override { return at::in_parallel_region() ? 1 : intra_op_threads(); }

  // at::parallel_for is a template that works only in code compiled for the OpenMP that torch was
  // built with; its loop over a tensor is compiled in torch. The tensor has an element a part, and
  // is made past the dispatcher: a TorchDispatchMode of the caller must not get hold of it.
  void run(size_t parts, const std::function<void(size_t)>& body) const override {
    if (lost_threads_in_fork()) {
      return run_on_new_threads(static_cast<size_t>(threads()), parts, body);
    }
    const at::Tensor numbers = at::detail::empty_cpu({static_cast<int64_t>(parts)}, at::kByte);
    const char* first = static_cast<const char*>(numbers.const_data_ptr());
    at::TensorIterator loop =
        at::TensorIteratorConfig().check_all_same_dtype(false).add_input(numbers).build();
    loop.for_each(
        [&](char** data, const int64_t* strides, int64_t n) {
          for (int64_t i = 0; i < n; ++i) {
            body(static_cast<size_t>(data[0] + i * strides[0] - first));
          }
        },
        /*grain_size=*/1);
  }
};

}  // namespace

std::unique_ptr<const Parallel> torch_threads() { return std::make_unique<TorchThreads>(); }

void in_parts(size_t count, size_t block, const std::function<void(size_t, size_t)>& body) {
  if (count < 2 * kPartValues || count / block < 2) return body(0, count);
  const TorchThreads threads;
  const size_t parts = std::min(static_cast<size_t>(threads.threads()), count / kPartValues);
  if (parts < 2) return body(0, count);
  const size_t blocks = (count + block - 1) / block;
  threads.run(parts, [&](size_t part) {
    const size_t first = blocks * part / parts * block;
    const size_t last = std::min(blocks * (part + 1) / parts * block, count);
    if (first < last) body(first, last - first);
  });
}

int intra_op_threads() { return threads_outside != 0 ? threads_outside : at::get_num_threads(); }

void set_intra_op_threads(int count) {
  if (at::get_num_threads() == count) return;
  // torch's own also changes what threads get that are yet to come, which is the program's affair.
  using Set = void (*)(int);
  static const auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(count);
  if (at::get_num_threads() != count) at::set_num_threads(count);  // another OpenMP, or none
}

SafeAfterFork::SafeAfterFork() : outermost_(lost_threads_in_fork() && threads_outside == 0) {
  if (!outermost_) return;
  threads_outside = at::get_num_threads();
  set_intra_op_threads(1);
}

SafeAfterFork::~SafeAfterFork() {
  if (outermost_) set_intra_op_threads(std::exchange(threads_outside, 0));
}

}  // namespace cgx
