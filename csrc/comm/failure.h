// Errors that break a group, as values that can cross a process border and be thrown again later.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "base/error.h"

namespace cgx {

/// One value per subclass of Error. The numbers go into shared memory and rendezvous keys: append,
/// never renumber.
enum class FailureKind : uint32_t {
  kError = 0,
  kTimeout = 1,
  kPeerLost = 2,
  kAborted = 3,
  kMismatch = 4,
  kNonFinite = 5,
  kResource = 6,
};

struct Failure {
  FailureKind kind = FailureKind::kError;
  /// Names the ranks concerned; not the call, which differs between ranks.
  std::string text;
  int rank = -1;  // of the group: the rank that found it; -1: this one
  CallName call;  // the call that this rank was in
};

/// Throws the subclass of Error that belongs to the kind (Error itself for a number that is not one
/// of the above). `what`: the text of the exception; without it, the number of the failed rank and
/// the text of the failure.
[[noreturn]] void throw_failure(const Failure& failure);
[[noreturn]] void throw_failure(const Failure& failure, const std::string& what);

/// `error` as a value. Exceptions other than Error become kError and keep their text.
Failure failure_of(const std::exception& error);

/// A text that unpack_failure() turns into the same failure again. From a text that was cut off,
/// unpack_failure() recovers the rest.
std::string pack_failure(const Failure& failure);
Failure unpack_failure(const std::string& packed);

}  // namespace cgx
