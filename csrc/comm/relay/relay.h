// The relay: a communicator over any library that sends tagged messages between pairs of ranks.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/communicator.h"
#include "comm/relay/point_to_point.h"

namespace cgx {

/// Bytes of the first frame of a message; receivers post this size before they know the length. With
/// it a message of 64 KiB of values is one message of the library.
inline constexpr size_t kRelayEagerBytes = size_t{72} << 10;

/// A communicator over `library`. An announced message travels as 8 bytes of length (native byte
/// order) and its first kRelayEagerBytes - 8 bytes with tag 0, then the rest, if there is one. So
/// receivers learn the true length before they read: a length above `capacity` is a MismatchError.
/// The other messages of a call (begin_call) travel as they are.
///
/// Everything but first frames carries a tag that encodes its length to an eighth (lengths.h), and
/// is received with that much room: a receive of a rank that expects another length never matches
/// it, so there is no overrun, and all receives of a call are posted before anything has come.
/// Messages between ranks that agree need no round trip. A library with fewer tags uses 1 for rests
/// and 2 for messages that are not announced, and the receives of a call are posted when its first
/// message has been looked at.
///
/// post() needs no action of the receivers; open() waits until the sends of the exchange
/// in_flight() before have ended. Everything that wait() and done() of Pending may touch stays
/// allocated until `library` is destroyed: if others still hold it after an error, the memory of
/// transfers under way is kept for the life of the process.
///
/// Errors: as Communicator; ConfigError for a capacity of 0. A failure here aborts `library`, so
/// that peers learn of it.
std::unique_ptr<Communicator> make_relay_communicator(std::shared_ptr<PointToPoint> library,
                                                      size_t capacity);

}  // namespace cgx
