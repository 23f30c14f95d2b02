#include "comm/mpi/process.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "comm/failure.h"
#include "comm/process_token.h"

namespace cgx {
namespace {

// Longest time for MPI_Finalize after an error, when peers may never call it.
constexpr auto kLastWait = std::chrono::seconds(5);
constexpr auto kJoinWait = std::chrono::seconds(10);

const char* name_of_level(int level) {
  switch (level) {
    case CGX_MPI_SINGLE:
      return "MPI_THREAD_SINGLE";
    case CGX_MPI_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case CGX_MPI_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

template <typename Condition>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                const Deadline& deadline, Condition condition) {
  while (!condition()) {
    if (deadline.expired()) return false;
    changed.wait_for(lock,
                     std::min<std::chrono::nanoseconds>(deadline.left(), std::chrono::seconds(1)));
  }
  return true;
}

}  // namespace

MpiProcess& MpiProcess::of(const CgxMpiApi* api) {
  if (api == nullptr || api->version != CGX_MPI_API_VERSION || api->bytes != sizeof(CgxMpiApi)) {
    throw ConfigError(
        str_of("the MPI module has interface version ", api == nullptr ? 0 : api->version,
               ", allowed: ", CGX_MPI_API_VERSION,
               "; reinstall torch_cgx, so that both of its parts are built together"));
  }
  // Never destroyed: its thread may outlive static objects.
  static auto* mutex = new std::mutex;
  static auto* processes = new std::map<const CgxMpiApi*, MpiProcess*>;
  std::lock_guard lock(*mutex);
  MpiProcess*& process = (*processes)[api];
  if (process == nullptr) process = new MpiProcess(*api);
  return *process;
}

MpiProcess::MpiProcess(const CgxMpiApi& api) : api_(api), owner_(process_token()), progress_(api) {}

std::string MpiProcess::describe(int error) const {
  char text[512] = "";
  api_.error_text(error, text, sizeof text);
  return str_of(api_.kind, " error ", error, " (", text, ")");
}

void MpiProcess::check(int error, const char* what) const {
  if (error != 0) throw Error(str_of("MPI: ", what, ": ", describe(error)));
}

void MpiProcess::check_owner() const {
  if (owner_ != process_token()) {
    throw Error("MPI belongs to the parent of this process; a forked child cannot use it");
  }
}

void MpiProcess::start(const Deadline& deadline) {
  check_owner();
  std::unique_lock lock(mutex_);
  if (state_ == State::kNew) {
    if (!std::exchange(at_exit_, true)) api_.at_exit(&MpiProcess::at_exit, this);
    thread_ = start_thread("the thread of MPI", [this] { run(); });
    thread_id_ = thread_.get_id();
    state_ = State::kStarting;  // before the thread sees it, which takes the lock for it
  }
  if (!wait_until(changed_, lock, deadline, [this] { return state_ != State::kStarting; })) {
    throw TimeoutError(
        str_of("MPI_Init_thread of ", api_.kind, " has not ended after ", deadline.elapsed_text(),
               ": every rank of the MPI job has to initialise MPI, also those outside of this "
               "group (`from mpi4py import MPI` at the start of the script does)"));
  }
  if (state_ == State::kUnusable) refusal_();
  if (state_ == State::kEnded) {
    throw ConfigError("MPI has been finalised in this process, so that it has no MPI any more");
  }
}

void MpiProcess::run() {
  pthread_setname_np(pthread_self(), "cgx-mpi");
  try {
    initialise();
    std::lock_guard lock(mutex_);
    state_ = State::kRunning;
  } catch (const ConfigError& error) {
    std::lock_guard lock(mutex_);
    refusal_ = [text = std::string(error.what())] { throw ConfigError(text); };
    state_ = State::kUnusable;
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    refusal_ = [text = std::string(error.what())] { throw Error(text); };
    state_ = State::kUnusable;
  }
  changed_.notify_all();
  progress_.run();
  bool finalize = false;
  {
    std::lock_guard lock(mutex_);
    finalize = finalize_ && initialised_here_ && creating_ == 0;
  }
  if (finalize) api_.finalize();
  {
    std::lock_guard lock(mutex_);
    state_ = State::kEnded;
  }
  changed_.notify_all();
}

void MpiProcess::initialise() {
  int initialized = 0;
  int finalized = 0;
  check(api_.state(&initialized, &finalized), "MPI_Initialized");
  if (finalized != 0) {
    throw ConfigError(
        "MPI has been finalised in this process (MPI.Finalize() of mpi4py?) and cannot be started "
        "again: make the process group before that, and finalise after it is destroyed");
  }
  int level = CGX_MPI_SINGLE;
  if (initialized != 0) {
    check(api_.thread_level(&level), "MPI_Query_thread");
  } else {
    check(api_.init(&level), "MPI_Init_thread");
    std::lock_guard lock(mutex_);
    initialised_here_ = true;
  }
  if (level != CGX_MPI_MULTIPLE) {
    throw ConfigError(
        initialized != 0
            ? str_of("MPI was initialised with thread level ", name_of_level(level),
                     ", needed: MPI_THREAD_MULTIPLE; with mpi4py, leave mpi4py.rc.threads and "
                     "mpi4py.rc.thread_level = 'multiple' as they are, otherwise call "
                     "MPI_Init_thread with MPI_THREAD_MULTIPLE")
            : str_of("this MPI (", api_.kind, ") offers thread level ", name_of_level(level),
                     ", needed: MPI_THREAD_MULTIPLE; use one that was built with it"));
  }
  check(api_.world(&world_.rank, &world_.size, &world_.largest_tag), "MPI_Comm_rank");
  char text[256] = "";
  check(api_.library_version(text, sizeof text), "MPI_Get_library_version");
  world_.library = text;
  world_.job = variable("PMIX_NAMESPACE");
  check(api_.on_finalize(&MpiProcess::at_finalize, this), "MPI_Comm_set_attr");
}

void MpiProcess::guarded(const std::function<void()>& step) {
  check_owner();
  std::shared_lock lock(calls_);
  if (closed_.load()) throw AbortedError("MPI has been finalised");
  step();
}

bool MpiProcess::help() { return owner_ == process_token() && progress_.help(); }

uint64_t MpiProcess::create_group(const std::vector<int>& world_ranks, int tag,
                                  const Deadline& deadline) {
  struct Creation {
    bool ended = false;
    int error = 0;
    uint64_t comm = 0;
  };
  auto creation = std::make_shared<Creation>();
  guarded([&] {
    std::lock_guard lock(mutex_);
    const auto create = [this, creation, world_ranks, tag] {
      uint64_t comm = 0;
      const int error =
          api_.create_group(world_ranks.data(), static_cast<int>(world_ranks.size()), tag, &comm);
      std::lock_guard ended(mutex_);
      *creation = {true, error, comm};
      --creating_;
      changed_.notify_all();
    };
    start_thread("the thread that makes a communicator of MPI", create).detach();
    ++creating_;
  });
  std::unique_lock lock(mutex_);
  if (!wait_until(changed_, lock, deadline, [&] { return creation->ended; })) {
    failed_ = true;
    throw TimeoutError(str_of("MPI_Comm_create_group over the ranks ", text_of(world_ranks),
                              " of MPI_COMM_WORLD has not ended after ", deadline.elapsed_text(),
                              ": some of them have not come to it, or belong to another MPI job"));
  }
  check(creation->error, "MPI_Comm_create_group");
  return creation->comm;
}

void MpiProcess::note_failure() {
  std::lock_guard lock(mutex_);
  failed_ = true;
}

// Ends the thread, which finalises MPI first if it is to. After the deadline it is left behind.
void MpiProcess::finish(bool finalize, const Deadline& deadline) {
  closed_.store(true);
  {
    // Waits for the calls under way; one that takes so long hangs in MPI, and will not return.
    std::unique_lock calls(calls_, std::defer_lock);
    (void)calls.try_lock_for(std::chrono::seconds(2));
  }
  std::unique_lock lock(mutex_);
  if (state_ == State::kNew) {
    state_ = State::kEnded;
    return;
  }
  finalize_ = finalize;
  lock.unlock();
  progress_.stop();
  lock.lock();
  const bool ended =
      wait_until(changed_, lock, deadline, [this] { return state_ == State::kEnded; });
  std::thread thread = std::move(thread_);
  lock.unlock();
  if (!thread.joinable()) return;
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
}

void MpiProcess::at_exit(void* self) {
  auto& process = *static_cast<MpiProcess*>(self);
  if (process.owner_ != process_token()) return;  // forked, and none of its business
  bool in_doubt = false;
  {
    std::lock_guard lock(process.mutex_);
    in_doubt = process.failed_ || process.creating_ != 0 || process.state_ == State::kStarting;
  }
  if (process.api_.exit_in_error() != 0) {
    // The others may be waiting for this rank. Waiting for them in MPI_Finalize would be a
    // deadlock; the launcher ends them when this process exits with an error.
    process.finish(false, Deadline::after(std::chrono::seconds(1)));
  } else {
    process.finish(true, in_doubt ? Deadline::after(kLastWait) : Deadline());
  }
}

void MpiProcess::at_finalize(void* self) {
  auto& process = *static_cast<MpiProcess*>(self);
  if (process.owner_ != process_token()) return;
  {
    std::lock_guard lock(process.mutex_);
    if (process.thread_id_ == std::this_thread::get_id()) return;
  }
  process.finish(false, Deadline::after(kJoinWait));
  if (process.api_.exit_in_error() != 0 && process.world_.size > 1) {
    // As in at_exit(), but MPI_Finalize was called by others, and would wait. Python has ended, and
    // this is the status of a program that ends with an exception.
    std::fflush(nullptr);
    std::_Exit(1);
  }
}

}  // namespace cgx
