// What a group says unasked: warnings of what its users may not expect of its number of bits.
//
// Thread-safety: all functions from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "backend/config/settings.h"

namespace cgx {

class Notices {
 public:
  /// speaks: whether this rank is the one that warns for its group.
  Notices(const OptionFields& options, bool speaks) : options_(options), speaks_(speaks) {}

  /// A reduction that names no configuration, about to begin: the group's settings decide.
  /// compressed: whether they compress it. Returns a warning, or an empty text:
  ///   - once per process, where they compress fewer than 1024 values, which are more likely a
  ///     metric than a gradient, and nobody has set min_size;
  ///   - once per process, where nobody has set the bits, registered a hook, or chosen anything
  ///     for a large tensor in any group, and many large reductions were exact: a hook that was
  ///     not registered looks like that.
  std::string reduction(const char* what, size_t values, size_t bytes, bool compressed);

  /// A call of so many bytes that names its configuration, in any group of this process: whoever
  /// compresses large tensors knows how. Small ones may be metrics.
  static void explicit_call(size_t bytes);
  /// A hook is at work.
  static void hook() { explicit_call(~size_t{0}); }

 private:
  const OptionFields& options_;
  const bool speaks_;
  std::atomic<int> exact_{0};
};

}  // namespace cgx
