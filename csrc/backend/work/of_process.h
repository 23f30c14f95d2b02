// Pointers whose object stays with the process that made it.
#pragma once

#include <cstdint>
#include <utility>

#include "comm/process_token.h"

namespace cgx {

/// A pointer that leaks in a forked child. What it points to may own threads that stayed in the
/// parent (joining one ends or stops the process), and an epoll instance that the child shares with
/// its parent: works of Gloo do. `Pointer`: an intrusive pointer of c10, strong or weak.
template <class Pointer>
class OfProcess {
 public:
  explicit OfProcess(Pointer pointer) : pointer_(std::move(pointer)) {}
  ~OfProcess() {
    if (process_ != process_token()) (void)pointer_.release();
  }
  OfProcess(OfProcess&& other) noexcept = default;
  OfProcess& operator=(OfProcess&& other) noexcept {
    std::swap(process_, other.process_);
    std::swap(pointer_, other.pointer_);
    return *this;
  }

  const Pointer& get() const { return pointer_; }
  auto* operator->() const { return pointer_.get(); }
  auto& operator*() const { return *pointer_; }

 private:
  uint64_t process_ = process_token();
  Pointer pointer_;
};

}  // namespace cgx
