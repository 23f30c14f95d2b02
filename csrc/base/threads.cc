#include "base/threads.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // also of "max"
}

struct Limit {
  std::string name;
  uint64_t most = 0;
  std::optional<uint64_t> used;

  uint64_t left() const { return used ? most - std::min(*used, most) : most; }
  std::string text() const {
    const bool reached = used && *used >= most;
    return str_of(name, " is ", most, used ? str_of(", ", *used, " in use") : "",
                  reached ? " (reached)" : "");
  }
};

// Threads of all processes of a user. A folder has a link more for each folder in it, and two of its
// own.
std::optional<uint64_t> threads_of(uid_t user, const std::string& root) {
  DIR* processes = opendir((root + "/proc").c_str());
  if (processes == nullptr) return std::nullopt;
  uint64_t threads = 0;
  while (const dirent* entry = readdir(processes)) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    struct stat tasks{};
    const std::string path = root + "/proc/" + entry->d_name + "/task";
    if (stat(path.c_str(), &tasks) == 0 && tasks.st_uid == user && tasks.st_nlink > 2) {
      threads += tasks.st_nlink - 2;
    }
  }
  closedir(processes);
  return threads;
}

std::optional<Limit> limit_of_user(const std::string& root) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return Limit{str_of("the limit of user ", getuid(), " (RLIMIT_NPROC, ulimit -u)"), limit.rlim_cur,
               threads_of(getuid(), root)};
}

// The tightest of the control groups that this process is in, up to the uppermost.
std::optional<Limit> limit_of_cgroup(const std::string& root) {
  std::optional<Limit> found;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "pids") continue;
    const std::string top = root + "/sys/fs/cgroup" + (controllers.empty() ? "" : "/pids");
    std::string group = line.substr(second + 1);
    while (true) {
      while (!group.empty() && group.back() == '/') group.pop_back();
      const std::string folder = top + group;
      if (const auto most = number_in(folder + "/pids.max")) {
        const Limit limit{"the limit of the control group " + (group.empty() ? "/" : group) +
                              " (pids.max; of a container: --pids-limit)",
                          *most, number_in(folder + "/pids.current")};
        if (!found || limit.left() < found->left()) found = limit;
      }
      const size_t above = group.rfind('/');
      if (above == std::string::npos) break;
      group.resize(above);
    }
  }
  return found;
}

std::optional<Limit> limit_of_kernel(const std::string& root) {
  const auto most = number_in(root + "/proc/sys/kernel/threads-max");
  if (!most) return std::nullopt;
  return Limit{"the kernel's (kernel.threads-max)", *most, std::nullopt};
}

// The thread that has lost others in a fork. Written by the only thread of a new process.
std::atomic<bool> known{false};
pthread_t survivor;

thread_local bool forks_beside_others = false;

// In the parent. Only async-signal-safe calls, in both.
void before_fork() {
  struct stat tasks{};
  const bool alone = stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;
  forks_beside_others = !alone || lost_threads_in_fork();
}

void in_child() {
  survivor = pthread_self();
  known.store(forks_beside_others, std::memory_order_release);
}

[[maybe_unused]] const int watching = pthread_atfork(before_fork, nullptr, in_child);

}  // namespace

std::thread start_thread(const std::string& purpose, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw ResourceError(str_of("the system does not start ", purpose, " (", error.code().message(),
                               "); ", thread_limits()));
  }
}

std::string thread_limits(const std::string& root) {
  std::string text;
  for (const auto& limit : {limit_of_user(root), limit_of_cgroup(root), limit_of_kernel(root)}) {
    if (limit) text += (text.empty() ? "" : "; ") + limit->text();
  }
  return str_of("threads and processes: ", text.empty() ? "no limit is known" : text,
                ". Raise the limit that is reached, or start fewer threads, as with "
                "OMP_NUM_THREADS=1. If none is reached, memory for a thread's stack is missing "
                "(ulimit -v, ulimit -s)");
}

bool lost_threads_in_fork() {
  return known.load(std::memory_order_acquire) && pthread_equal(survivor, pthread_self()) != 0;
}

}  // namespace cgx
