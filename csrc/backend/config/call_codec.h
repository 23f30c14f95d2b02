// The codec of a group's calls, looked up anew only when something that it depends on has changed:
// a look-up costs about a tenth of a small all-reduce over shared memory.
//
// Thread-safe; as settings.h says, reading the environment races with setenv() of other threads.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/config/settings.h"

namespace cgx {

class CallCodec {
 public:
  /// Both outlive this object, and do not change.
  CallCodec(const OptionFields& options, const GroupConfig& group);

  /// Same result as resolve_codec(). To be called on the caller's thread.
  std::shared_ptr<const Codec> get();

 private:
  /// An environment variable that is read at each call, and its value at the last look-up.
  struct Variable {
    std::string name;
    std::optional<std::string> value;
  };

  const OptionFields& options_;
  const GroupConfig& group_;
  std::mutex mutex_;  // guards what follows
  std::vector<Variable> variables_;
  std::shared_ptr<const Codec> codec_;  // null: not looked up yet
};

}  // namespace cgx
