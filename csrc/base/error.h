// Every failure of the engine is one of these exceptions; nothing calls exit() or abort().
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace cgx {

/// Base of all errors that happen while ranks talk to each other. After one of these the group is
/// broken: every later call on it fails at once with the first cause.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A wait passed its deadline.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A peer's process has ended, or its carrier says that it cannot be reached.
class PeerLostError : public Error {
 public:
  using Error::Error;
};

/// abort() was called, here or on another rank.
class AbortedError : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree on what they are doing: sizes, types, configuration, order of calls.
class MismatchError : public Error {
 public:
  using Error::Error;
};

/// A NaN or an Inf was met under the policy nonfinite="raise".
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// Something the machine lacks (memory in /dev/shm, a system call that was refused).
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
