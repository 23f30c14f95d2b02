#include "base/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace cgx {
namespace {

std::atomic<bool> off{false};

struct stat stderr_now() {
  struct stat found{};
  if (::fstat(STDERR_FILENO, &found) != 0) found.st_mode = 0;
  return found;
}

const struct stat at_start = stderr_now();  // when this library was loaded

// A process's stderr is inherited by its children. A file that got the number after stderr was closed
// mostly is not: Python, shm_open() and libuv have theirs closed on exec. Sockets of other libraries
// are known by their age; stderr itself is one under systemd.
bool is_stderr() {
  const int flags = ::fcntl(STDERR_FILENO, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC) != 0) return false;
  const struct stat now = stderr_now();
  return !S_ISSOCK(now.st_mode) || (now.st_dev == at_start.st_dev && now.st_ino == at_start.st_ino);
}

}  // namespace

void log_line(const std::string& text) {
  const int kept = errno;
  if (!off && is_stderr()) {
    const std::string line = "[cgx] " + text + "\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  errno = kept;
}

void log_nothing() { off = true; }

}  // namespace cgx
