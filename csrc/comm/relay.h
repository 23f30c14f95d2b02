// Exchanges over any library that sends tagged messages between pairs of ranks.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/communicator.h"
#include "comm/point_to_point.h"

namespace cgx {

/// Bytes of the first frame of a message; receivers post this much without knowing what comes.
inline constexpr size_t kRelayEagerBytes = 16384;

/// A communicator over `carrier`. An announced message travels as 8 bytes of length (native byte
/// order) and its first kRelayEagerBytes - 8 bytes with tag 0, the rest, if there is one, with tag
/// 1. So receivers learn the true length before they post a receive of that length: a length above
/// `capacity` is a MismatchError, never an overrun. The other messages of a call (begin_call)
/// travel as they are, with tag 2, and their receives are posted as soon as they are expected: they
/// arrive while the reader is busy with earlier ones.
///
/// post() needs no action of the receivers; open() waits until the sends of the exchange
/// in_flight() before have ended. Everything that wait() and done() of Pending may touch stays
/// allocated until `carrier` is destroyed: if others still hold it after an error, the memory of
/// transfers under way is kept for the life of the process.
///
/// Errors: as Communicator; ConfigError for a capacity of 0. A failure here aborts `carrier`, so
/// that peers learn of it.
std::unique_ptr<Communicator> make_relay_communicator(std::shared_ptr<PointToPoint> carrier,
                                                      size_t capacity);

}  // namespace cgx
