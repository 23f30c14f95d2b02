#include "comm/failure.h"

#include <cstdlib>

namespace cgx {

void throw_failure(const Failure& failure) {
  switch (failure.kind) {
    case FailureKind::kTimeout:
      throw TimeoutError(failure.text);
    case FailureKind::kPeerLost:
      throw PeerLostError(failure.text);
    case FailureKind::kAborted:
      throw AbortedError(failure.text);
    case FailureKind::kMismatch:
      throw MismatchError(failure.text);
    case FailureKind::kNonFinite:
      throw NonFiniteError(failure.text);
    case FailureKind::kResource:
      throw ResourceError(failure.text);
    case FailureKind::kError:
      break;
  }
  throw Error(failure.text);
}

Failure failure_of(const std::exception& error) {
  auto is = [&error](auto* type) { return dynamic_cast<decltype(type)>(&error) != nullptr; };
  FailureKind kind = FailureKind::kError;
  if (is(static_cast<const TimeoutError*>(nullptr))) kind = FailureKind::kTimeout;
  if (is(static_cast<const PeerLostError*>(nullptr))) kind = FailureKind::kPeerLost;
  if (is(static_cast<const AbortedError*>(nullptr))) kind = FailureKind::kAborted;
  if (is(static_cast<const MismatchError*>(nullptr))) kind = FailureKind::kMismatch;
  if (is(static_cast<const NonFiniteError*>(nullptr))) kind = FailureKind::kNonFinite;
  if (is(static_cast<const ResourceError*>(nullptr))) kind = FailureKind::kResource;
  return {kind, error.what()};
}

std::string pack_failure(const Failure& failure) {
  return str_of(static_cast<uint32_t>(failure.kind), ' ', failure.text);
}

Failure unpack_failure(const std::string& packed) {
  const size_t space = packed.find(' ');
  const auto kind = static_cast<FailureKind>(std::strtoul(packed.c_str(), nullptr, 10));
  return {kind, space == std::string::npos ? packed : packed.substr(space + 1)};
}

}  // namespace cgx
