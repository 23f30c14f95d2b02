// Memory of the stub driver that processes share, and who has it open. In an unnamed namespace, as
// stub_device.h.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// True where the call is to fail.
template <typename... Args>
bool called(const char* name, const Args&... args) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  static FILE* log = setting("STUB_DRIVER_LOG").empty()
                         ? nullptr
                         : std::fopen(setting("STUB_DRIVER_LOG").c_str(), "a");
  if (log != nullptr) {
    std::fprintf(log, "%s", name);
    (std::fprintf(log, " %lld", static_cast<long long>(args)), ...);
    std::fprintf(log, "\n");
    std::fflush(log);
  }
  return setting("STUB_DRIVER_FAIL") == name;
}

// A process as the driver sees it: the number that the thread has chosen (stub_set_process) in the
// low bits, and the process's own above.
thread_local int process_number = 0;
constexpr int kNumberBits = 16;
int64_t this_process() { return (int64_t{getpid()} << kNumberBits) + process_number; }

// False also for one that was killed and waits for its parent: its memory is gone.
bool alive(int64_t process) {
  char file[40], facts[512] = "";
  std::snprintf(file, sizeof file, "/proc/%d/stat", static_cast<int>(process >> kNumberBits));
  FILE* stat = std::fopen(file, "r");
  if (stat == nullptr) return false;
  const size_t got = std::fread(facts, 1, sizeof facts - 1, stat);
  std::fclose(stat);
  const char* name_end = got > 0 ? std::strrchr(facts, ')') : nullptr;
  return name_end != nullptr && std::strchr("ZX", name_end[2]) == nullptr;
}

// Before the memory of a SharedFile, in the same file.
struct SharedHeader {
  static constexpr size_t kBytes = 4096;
  static constexpr int kMost = 500;
  int64_t owner;
  std::atomic<int64_t> openers[kMost];  // 0: a free place
};
static_assert(sizeof(SharedHeader) <= SharedHeader::kBytes);

// Memory that other processes open through this one's /proc entry: device memory, or the state of
// an event. It has no name of its own, so nothing is left behind by a process that is killed.
struct SharedFile {
  char name[40] = "";  // what the owner opens to others
  int fd = -1;         // the owner's; an importer has none
  void* data = nullptr;
  size_t bytes = 0;
  int place = -1;  // an importer's, in the header

  static SharedFile make(size_t bytes) {
    SharedFile file;
    const size_t all = SharedHeader::kBytes + bytes;
    file.fd = memfd_create("cgx-stub", MFD_CLOEXEC);
    if (file.fd < 0 || ftruncate(file.fd, static_cast<off_t>(all)) != 0) return {};
    std::snprintf(file.name, sizeof file.name, "/proc/%d/fd/%d", getpid(), file.fd);
    if (!file.map(file.fd, all)) return {};
    file.header()->owner = this_process();
    return file;
  }
  static SharedFile open(const char* name) {
    SharedFile file;
    const int fd = ::open(name, O_RDWR | O_CLOEXEC);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) != 0) return {};
    file.map(fd, static_cast<size_t>(facts.st_size));
    ::close(fd);
    return file;
  }
  bool own() const { return fd >= 0; }
  SharedHeader* header() const {
    return reinterpret_cast<SharedHeader*>(static_cast<char*>(data) - SharedHeader::kBytes);
  }
  // False where no more importers have room.
  bool sign() {
    for (place = 0; place < SharedHeader::kMost; ++place) {
      int64_t free = 0;
      if (header()->openers[place].compare_exchange_strong(free, this_process())) return true;
    }
    return false;
  }
  // A process that has this open, apart from those that have ended; 0: none.
  int64_t opener() const {
    for (const std::atomic<int64_t>& one : header()->openers) {
      if (one != 0 && alive(one)) return one;
    }
    return 0;
  }
  // The owner's handle, or the importer's sign; the memory stays mapped.
  void let_go() const {
    if (own()) ::close(fd);
    if (place >= 0) header()->openers[place] = 0;
  }
  void release() const {
    let_go();
    munmap(header(), SharedHeader::kBytes + bytes);
  }

 private:
  bool map(int of, size_t all) {
    void* from = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, of, 0);
    if (from == MAP_FAILED) return false;
    data = static_cast<char*>(from) + SharedHeader::kBytes;
    bytes = all - SharedHeader::kBytes;
    return true;
  }
};

// True where a call would end what a peer has open, which the driver calls undefined: said on stderr
// and in the log, and the end of the process under STUB_DRIVER_STRICT.
bool undefined(const char* call, const SharedFile& file) {
  const int64_t peer = file.opener();
  if (!file.own() || peer == 0) return false;
  const int pid = static_cast<int>(peer >> kNumberBits);
  const int number = static_cast<int>(peer & ((1 << kNumberBits) - 1));
  called("undefined", pid, number);
  std::fprintf(stderr,
               "stub driver: %s of something that process %d (stub_set_process: %d) has open; this "
               "is undefined in CUDA\n",
               call, pid, number);
  if (!setting("STUB_DRIVER_STRICT").empty()) std::abort();
  return true;
}

}  // namespace
