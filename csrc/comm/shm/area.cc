#include "comm/shm/area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "comm/process_token.h"

namespace cgx {
namespace {

constexpr const char* kPrefix = "/cgx-";
// The way out of every lack of shared memory.
constexpr const char* kWithout =
    "or do without shared memory: CGX_INNER_COMMUNICATOR_TYPE=GLOO on all ranks";

// Areas of this process by name. A forked child starts with the entries of its parent; names are
// never used twice, so it never finds them.
std::mutex registry_mutex;
std::map<std::string, std::weak_ptr<ShmArea>>& registry() {
  static auto* areas = new std::map<std::string, std::weak_ptr<ShmArea>>;
  return *areas;
}

std::string unguessable_name() {
  uint64_t random[2];
  size_t have = 0;
  while (have < sizeof random) {
    const ssize_t got = getrandom(reinterpret_cast<char*>(random) + have, sizeof random - have, 0);
    if (got < 0 && errno != EINTR) {
      throw ResourceError(str_of("getrandom failed: ", std::strerror(errno)));
    }
    if (got > 0) have += static_cast<size_t>(got);
  }
  std::ostringstream name;
  name << kPrefix << getpid() << '-' << std::hex << random[0] << random[1];
  return name.str();
}

std::string mebibytes(size_t bytes) { return str_of((bytes + (1 << 20) - 1) >> 20, " MiB"); }

[[noreturn]] void throw_no_room(size_t bytes, const std::string& cause) {
  struct statvfs info{};
  std::string available = "an unknown amount";
  if (statvfs("/dev/shm", &info) == 0) {
    available = mebibytes(static_cast<size_t>(info.f_bavail) * info.f_frsize);
  }
  throw ResourceError(
      str_of("/dev/shm is too small: ", mebibytes(bytes), " (", bytes, " bytes) needed, ",
             available, " free (", cause,
             "). Give it more (docker run --shm-size=..., or remount /dev/shm with a "
             "larger size), make areas smaller with CGX_SHM_SEGMENT_KB, or buckets that are "
             "longer than an area smaller with bucket_size; ",
             kWithout));
}

// Allocates the pages now: a full /dev/shm must be an error here, not a SIGBUS in the middle of
// training. In steps, because a signal undoes the current step.
void allocate_pages(int descriptor, size_t offset, size_t bytes) {
  struct rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      offset + bytes > limit.rlim_cur) {
    // The kernel would end the process.
    throw_no_room(bytes,
                  str_of("files of this process may have ", limit.rlim_cur, " bytes: ulimit -f"));
  }
  struct statvfs info{};
  if (fstatvfs(descriptor, &info) == 0 && info.f_blocks != 0 &&
      bytes / info.f_frsize >= static_cast<size_t>(info.f_bavail)) {
    throw_no_room(bytes, "checked before allocation");
  }
  constexpr size_t kStep = size_t{16} << 20;
  for (size_t done = 0; done < bytes;) {
    const size_t step = std::min(kStep, bytes - done);
    const int error =
        posix_fallocate(descriptor, static_cast<off_t>(offset + done), static_cast<off_t>(step));
    if (error == EINTR) continue;
    if (error != 0) throw_no_room(bytes, std::strerror(error));
    done += step;
  }
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }
  void reset(int value) {
    if (value_ >= 0) close(value_);
    value_ = value;
  }

 private:
  int value_;
};

// A file that another process has open as `number`, if it is the one with this inode; else -1. The
// number may mean something else in our PID namespace: nothing but that file is ever opened.
int open_of_process(pid_t process, int number, dev_t device, ino_t inode) {
  const std::string theirs = str_of("/proc/", process, "/fd/", number);
  const Descriptor place(::open(theirs.c_str(), O_PATH | O_CLOEXEC));
  struct stat info{};
  if (place.get() < 0 || fstat(place.get(), &info) != 0) return -1;
  if (!S_ISREG(info.st_mode) || info.st_dev != device || info.st_ino != inode) return -1;
  return ::open(str_of("/proc/self/fd/", place.get()).c_str(), O_RDWR | O_CLOEXEC);
}

struct flock byte_lock(int rank, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

ShmRange::ShmRange(int descriptor, const std::string& name, size_t offset, size_t bytes)
    : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor,
                      static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    throw ResourceError(
        str_of("cannot map ", bytes, " bytes of /dev/shm", name, ": ", std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(memory);
}

ShmRange::~ShmRange() { munmap(data_, bytes_); }

ShmArea::ShmArea(std::string name, int descriptor, size_t bytes, bool named)
    : name_(std::move(name)), descriptor_(descriptor), bytes_(bytes), named_(named) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    close(descriptor);
    throw ResourceError(
        str_of("cannot map ", bytes, " bytes of /dev/shm", name_, ": ", std::strerror(error)));
  }
  data_ = static_cast<std::byte*>(memory);
}

ShmArea::~ShmArea() {
  munmap(data_, bytes_);
  close(descriptor_);
}

void ShmArea::remember(const std::shared_ptr<ShmArea>& area) {
  std::erase_if(registry(), [](const auto& entry) { return entry.second.expired(); });
  registry()[area->name()] = area;
}

std::shared_ptr<ShmArea> ShmArea::create(size_t bytes) {
  const std::string name = unguessable_name();
  // A rank that is killed before all have attached would leave a name behind for good.
  Descriptor descriptor(::open("/dev/shm", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  const bool named = descriptor.get() < 0;
  if (named) {
    descriptor.reset(
        shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  }
  if (descriptor.get() < 0) {
    const int error = errno;
    throw ResourceError(str_of(
        "cannot make /dev/shm", name, ": ", std::strerror(error), ". ",
        error == ENOENT  ? "There is no /dev/shm: mount a tmpfs there, "
        : error == EROFS ? "/dev/shm is read-only: mount a tmpfs there that can be written to, "
                         : "Processes of this user must be able to make files in /dev/shm, ",
        kWithout));
  }
  try {
    allocate_pages(descriptor.get(), 0, bytes);
    std::lock_guard lock(registry_mutex);
    std::shared_ptr<ShmArea> area(new ShmArea(name, descriptor.release(), bytes, named));
    remember(area);
    return area;
  } catch (...) {
    if (named) shm_unlink(name.c_str());
    throw;
  }
}

std::string ShmArea::address() const {
  if (named_) return name_;
  struct stat info{};
  if (fstat(descriptor_, &info) != 0) {
    throw ResourceError(str_of("cannot look at /dev/shm", name_, ": ", std::strerror(errno)));
  }
  return str_of(name_, ' ', getpid(), ' ', descriptor_, ' ', info.st_dev, ' ', info.st_ino);
}

std::shared_ptr<ShmArea> ShmArea::open(const std::string& address) {
  std::istringstream words(address);
  std::string name;
  words >> name;
  if (name.rfind(kPrefix, 0) != 0 || name.find('/', 1) != std::string::npos) {
    throw MismatchError(str_of("area name is \"", name, "\", expected ", kPrefix, "..."));
  }
  std::lock_guard lock(registry_mutex);
  if (auto found = registry().find(name); found != registry().end()) {
    if (auto area = found->second.lock()) return area;
  }
  pid_t process = 0;
  int number = -1;
  dev_t device = 0;
  ino_t inode = 0;
  const bool named = !(words >> process >> number >> device >> inode);
  Descriptor descriptor(named ? shm_open(name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0)
                              : open_of_process(process, number, device, inode));
  if (descriptor.get() < 0) {
    if (!named) return nullptr;
    throw ResourceError(
        str_of("cannot open /dev/shm", name, ": ", std::strerror(errno),
               " (ranks of one group must see one /dev/shm: give their containers a common --ipc, ",
               kWithout, ")"));
  }
  struct stat info{};
  if (fstat(descriptor.get(), &info) != 0) {
    throw ResourceError(str_of("cannot look at /dev/shm", name, ": ", std::strerror(errno)));
  }
  if (info.st_uid != geteuid() || !S_ISREG(info.st_mode) || (info.st_mode & 077) != 0 ||
      info.st_size <= 0) {
    throw ResourceError(str_of("/dev/shm", name, " belongs to uid ", info.st_uid, " with mode ",
                               std::oct, info.st_mode & 07777, std::dec, " and ", info.st_size,
                               " bytes, expected uid ", geteuid(), ", mode 600"));
  }
  std::shared_ptr<ShmArea> area(
      new ShmArea(name, descriptor.release(), static_cast<size_t>(info.st_size), named));
  remember(area);
  return area;
}

void ShmArea::give_name() {
  if (named_) return;
  const std::string from = str_of("/proc/self/fd/", descriptor_), to = "/dev/shm" + name_;
  if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    throw ResourceError(str_of("cannot make ", to, ": ", std::strerror(errno)));
  }
  named_ = true;
}

void ShmArea::take(size_t offset, size_t bytes) { allocate_pages(descriptor_, offset, bytes); }

std::unique_ptr<ShmRange> ShmArea::map(size_t offset, size_t bytes) const {
  struct stat info{};
  if (fstat(descriptor_, &info) != 0 || static_cast<size_t>(info.st_size) < offset + bytes) {
    return nullptr;
  }
  return std::make_unique<ShmRange>(descriptor_, name_, offset, bytes);
}

void ShmArea::unlink() { shm_unlink(name_.c_str()); }

void ShmArea::hold_lock(int rank) {
  struct flock lock = byte_lock(rank, F_WRLCK);
  int result;
  do {
    result = fcntl(descriptor_, F_SETLK, &lock);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    throw ResourceError(str_of("cannot lock byte ", rank, " of /dev/shm", name_, ": ",
                               std::strerror(errno), " (is another process using the same rank?)"));
  }
}

bool ShmArea::locked_elsewhere(int rank) const {
  struct flock lock = byte_lock(rank, F_WRLCK);
  if (fcntl(descriptor_, F_GETLK, &lock) != 0)
    return true;  // not known: only the deadline ends the wait
  return lock.l_type != F_UNLCK;
}

}  // namespace cgx
