// The MPI of this process: initialised once, shared with the rest of the program, finalised at
// exit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "comm/mpi/api.h"
#include "comm/mpi/progress.h"

namespace cgx {

/// One per table of functions, made on first use and never destroyed. Thread-safe.
///
/// A thread of its own tests the requests; it initialises MPI unless that is done, and then ends it
/// when the interpreter has ended. If the program has initialised MPI itself (by mpi4py, say), it
/// ends MPI, too; all transfers are ended before that in either case.
class MpiProcess {
 public:
  struct World {
    int rank = 0;
    int size = 0;
    int largest_tag = 0;
    std::string library;
    std::string job;  // name that the launcher gave the job; empty if it does not say
  };

  /// ConfigError for a table of another version.
  static MpiProcess& of(const CgxMpiApi* api);

  /// Initialises MPI unless that is done. Every rank of the job must call this (or initialise MPI
  /// in another way): TimeoutError if some do not. ConfigError: MPI has been finalised, or was
  /// initialised without MPI_THREAD_MULTIPLE; Error: it does not start, or belongs to the parent of
  /// this process.
  void start(const Deadline& deadline);

  /// Valid after start().
  const World& world() const { return world_; }
  const CgxMpiApi& api() const { return api_; }
  MpiProgress& progress() { return progress_; }

  /// Runs `step`, which calls MPI, unless MPI is being finalised or belongs to the parent of this
  /// process: AbortedError. `step` must not wait for other ranks.
  void guarded(const std::function<void()>& step);

  /// Moves messages on, from a thread that waits for one; whether any has ended. Never waits.
  bool help();

  /// MPI_Comm_create_group over ranks of the world, in a thread that is left behind after the
  /// deadline: TimeoutError that names the ranks.
  uint64_t create_group(const std::vector<int>& world_ranks, int tag, const Deadline& deadline);

  /// A group has failed: peers may be gone, so from now on the end of MPI is waited for a few
  /// seconds only.
  void note_failure();

  /// "openmpi error 15 (MPI_ERR_TRUNCATE: ...)"
  std::string describe(int error) const;

 private:
  enum class State { kNew, kStarting, kRunning, kUnusable, kEnded };

  explicit MpiProcess(const CgxMpiApi& api);

  void run();
  void initialise();
  void check(int error, const char* what) const;
  void check_owner() const;
  static void at_exit(void* self);
  static void at_finalize(void* self);
  void finish(bool finalize, const Deadline& deadline);

  const CgxMpiApi& api_;
  const uint64_t owner_;  // token of the process
  MpiProgress progress_;
  World world_;

  std::shared_timed_mutex calls_;  // shared: calls of MPI by other threads
  std::atomic<bool> closed_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kNew;
  std::function<void()> refusal_;  // throws why MPI is unusable
  std::thread thread_;
  std::thread::id thread_id_;
  bool at_exit_ = false;  // the handler is registered
  bool initialised_here_ = false;
  bool finalize_ = false;
  bool failed_ = false;
  int creating_ = 0;  // threads in create_group()
};

}  // namespace cgx
