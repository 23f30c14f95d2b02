// One file in /dev/shm, mapped by the ranks of a group: making, opening, checking, unlinking, and
// life signs.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace cgx {

/// A mapped range of an area's file, beyond what ShmArea maps.
class ShmRange {
 public:
  ShmRange(int descriptor, const std::string& name, size_t offset, size_t bytes);
  ~ShmRange();
  ShmRange(const ShmRange&) = delete;
  ShmRange& operator=(const ShmRange&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
};

/// A mapped area. There is one object, with one descriptor, per process and area, even where
/// several ranks of a group live in the process: POSIX locks of a process vanish as soon as it
/// closes any descriptor of the file. Thread-safety: all methods may be called concurrently.
class ShmArea {
 public:
  /// Makes an area of `bytes` zeros, mode 0600, without a name in /dev/shm where the kernel can do
  /// that, so that nothing is left however the process ends; else under an unguessable name.
  /// ResourceError says what is missing and what to do, and leaves no file.
  static std::shared_ptr<ShmArea> create(size_t bytes);

  /// The address under which other processes open() it.
  std::string address() const;

  /// Opens what create() made here or in another process. Null where it has no name and its
  /// process is out of reach (another PID namespace): give_name() there, and open that.
  /// ResourceError where it cannot be reached in any way or belongs to another user.
  static std::shared_ptr<ShmArea> open(const std::string& address);

  /// Puts it into /dev/shm under name(), until unlink(); its address is the name from then on.
  void give_name();

  ~ShmArea();
  ShmArea(const ShmArea&) = delete;
  ShmArea& operator=(const ShmArea&) = delete;

  const std::string& name() const { return name_; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  /// Takes the memory of `bytes` bytes of the file, from `offset` on, which may lie anywhere behind
  /// what data() shows; the file becomes as long as that needs. ResourceError as create().
  void take(size_t offset, size_t bytes);

  /// Maps a range of the file; null if the file ends before the range does. `offset`: of a page.
  std::unique_ptr<ShmRange> map(size_t offset, size_t bytes) const;

  /// Removes the name, if there is one; the memory stays until the last process has unmapped it.
  /// May be called by anyone, repeatedly.
  void unlink();

  /// Locks byte `rank` of the file for this process. The kernel unlocks it when the process ends,
  /// however it ends; a forked child does not inherit it.
  void hold_lock(int rank);

  /// True if another process holds the lock of `rank`. Locks of this process look free.
  bool locked_elsewhere(int rank) const;

 private:
  ShmArea(std::string name, int descriptor, size_t bytes, bool named);
  static void remember(const std::shared_ptr<ShmArea>& area);

  std::string name_;
  int descriptor_;
  size_t bytes_;
  bool named_;
  std::byte* data_ = nullptr;
};

}  // namespace cgx
