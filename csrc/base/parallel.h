// Threads that the embedding program lends for large loops. None by default.
#pragma once

#include <cstddef>
#include <functional>

namespace cgx {

class Parallel {
 public:
  virtual ~Parallel() = default;

  /// Number of threads, the caller's included. At least 1.
  virtual int threads() const = 0;

  /// Calls body(0) ... body(parts - 1), each once, on any of the threads, and returns when all have
  /// returned. An exception of a body is thrown here.
  virtual void run(size_t parts, const std::function<void(size_t)>& body) const = 0;
};

}  // namespace cgx
