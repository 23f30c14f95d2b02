// Every failure of the engine is one of these exceptions; nothing calls exit() or abort().
#pragma once

#include <cstdint>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace cgx {

/// A collective of a group: "all_reduce number 7". Numbers count from 1; sends and receives have
/// numbers of their own. Number 0: none in particular.
struct CallName {
  std::string operation;
  uint64_t number = 0;

  std::string text() const {
    return number == 0 ? operation : operation + " number " + std::to_string(number);
  }
};

/// The origin of an error, for code that reports it again with a text of its own.
struct Origin {
  std::string text;  // without the call that it met
  int rank = -1;     // of the group, that met it; -1: the one that throws
  CallName call;     // that this rank was in
};

/// Base of all errors in communication. After one of these the group is broken: every later call on
/// it fails at once with the first cause.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  Error(const std::string& what, Origin origin)
      : std::runtime_error(what), origin_(std::make_shared<const Origin>(std::move(origin))) {}

  /// Null: only what() is known.
  const Origin* origin() const { return origin_.get(); }

 private:
  std::shared_ptr<const Origin> origin_;  // copies of an exception must not throw
};

/// A wait passed its deadline.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A peer's process has ended, or the communicator reports that the peer is unreachable.
class PeerLostError : public Error {
 public:
  using Error::Error;
};

/// abort() was called, here or on another rank.
class AbortedError : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree: on sizes, types, configuration, or the order of calls.
class MismatchError : public Error {
 public:
  using Error::Error;
};

/// A NaN or an Inf was met under the policy nonfinite="raise".
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// A resource of the machine is missing (memory in /dev/shm, a permitted system call).
class ResourceError : public Error {
 public:
  using Error::Error;
};

/// The caller's argument or an environment variable is wrong. Becomes ValueError in Python. The
/// group stays usable.
class ConfigError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// str_of("bits is ", 9, ", allowed: 1-8") -> std::string
template <typename... Args>
std::string str_of(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace cgx
