// Warnings of a group about effects of its number of bits that its users may not expect.
//
// Thread-safety: all functions from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "backend/config/settings.h"
#include "codec/codec.h"

namespace cgx {

class Notices {
 public:
  /// speaks: true on the one rank of the group that warns.
  Notices(const OptionFields& options, bool speaks) : options_(options), speaks_(speaks) {}

  /// A reduction that names no configuration, about to begin: the group's settings decide.
  /// compressed: whether they compress it. Returns a warning, or an empty text:
  ///   - once per process, where they compress fewer than 1024 values, which are more likely a
  ///     metric than a gradient, and min_size is not set;
  ///   - once per process, where the bits are not set, no hook is registered, no call on a large
  ///     tensor has named a configuration in any group, and many large reductions were exact: the
  ///     user may have forgotten to register the hook.
  std::string reduction(const char* what, size_t values, size_t bytes, bool compressed);

  /// Once per group, at its first reduction of 1024 values or more that the group's settings
  /// compress: a line about what they do, for the log. Empty otherwise, and where `speaks` is false.
  std::string group_wide(size_t values, const Codec& codec, bool tuned);

  /// A call of so many bytes that names its configuration, in any group of this process. A large
  /// one stops the second warning: this program does compress. Small ones may be metrics.
  static void explicit_call(size_t bytes);
  /// A hook is at work.
  static void hook() { explicit_call(~size_t{0}); }

 private:
  const OptionFields& options_;
  const bool speaks_;
  std::atomic<int> exact_{0};
  std::atomic<bool> group_wide_told_{false};
};

}  // namespace cgx
