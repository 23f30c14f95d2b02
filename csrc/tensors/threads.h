// torch's intra-op threads, lent to the engine's codecs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/parallel.h"

namespace cgx {

/// Threads of at::parallel_for, as many as torch.set_num_threads() gives the thread that asks. A
/// thread that has lost its threads in a fork gets new ones for each loop: OpenMP, which at::parallel_for uses,
/// would wait for threads that stayed in the parent.
std::unique_ptr<const Parallel> torch_threads();

/// The parts of a local operator begin at multiples of this many values, which fill whole cache lines and
/// whole bytes of codes.
inline constexpr size_t kPartStep = 4096;

/// Calls body(first, n) over parts of a run of `count` values, on the caller's threads if it is long.
/// Parts begin at multiples of `block`.
void in_parts(size_t count, size_t block, const std::function<void(size_t, size_t)>& body);

/// Their number on the calling thread: kept when a call is made, given to the thread that runs it.
int intra_op_threads();
void set_intra_op_threads(int count);

/// As long as it lives, torch's operators run on the calling thread alone, if that has lost its
/// threads in a fork; intra_op_threads() and torch_threads() are as before. Stays on its thread.
class SafeAfterFork {
 public:
  SafeAfterFork();
  ~SafeAfterFork();
  SafeAfterFork(const SafeAfterFork&) = delete;
  SafeAfterFork& operator=(const SafeAfterFork&) = delete;

 private:
  bool outermost_ = false;
};

}  // namespace cgx
