#include "comm/failure.h"

#include <iterator>
#include <sstream>

namespace cgx {

void throw_failure(const Failure& failure) {
  const bool told = failure.rank >= 0;
  throw_failure(failure,
                told ? str_of("rank ", failure.rank, " failed: ", failure.text) : failure.text);
}

void throw_failure(const Failure& failure, const std::string& what) {
  const Origin origin{failure.text, failure.rank, failure.call};
  switch (failure.kind) {
    case FailureKind::kTimeout:
      throw TimeoutError(what, origin);
    case FailureKind::kPeerLost:
      throw PeerLostError(what, origin);
    case FailureKind::kAborted:
      throw AbortedError(what, origin);
    case FailureKind::kMismatch:
      throw MismatchError(what, origin);
    case FailureKind::kNonFinite:
      throw NonFiniteError(what, origin);
    case FailureKind::kResource:
      throw ResourceError(what, origin);
    case FailureKind::kError:
      break;
  }
  throw Error(what, origin);
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
  const auto* ours = dynamic_cast<const Error*>(&error);
  const Origin* origin = ours != nullptr ? ours->origin() : nullptr;
  if (origin == nullptr) return {kind, error.what()};
  return {kind, origin->text, origin->rank, origin->call};
}

// "kind rank number length operation text": operations may have spaces.
std::string pack_failure(const Failure& failure) {
  const std::string& operation = failure.call.operation;
  return str_of(static_cast<uint32_t>(failure.kind), ' ', failure.rank, ' ', failure.call.number,
                ' ', operation.size(), ' ', operation, ' ', failure.text);
}

Failure unpack_failure(const std::string& packed) {
  Failure failure;
  std::istringstream words(packed);
  uint32_t kind = 0;
  size_t length = 0;
  if (!(words >> kind >> failure.rank >> failure.call.number >> length) || length > packed.size()) {
    return {FailureKind::kError, packed};
  }
  failure.kind = static_cast<FailureKind>(kind);
  words.get();  // the space
  failure.call.operation.resize(length);
  words.read(failure.call.operation.data(), static_cast<std::streamsize>(length));
  failure.call.operation.resize(static_cast<size_t>(words.gcount()));
  words.get();
  failure.text.assign(std::istreambuf_iterator<char>(words), {});
  return failure;
}

}  // namespace cgx
