// The SHM communicator: ranks of one host, as processes (or threads) that map one area of /dev/shm.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace cgx {

/// Called by all ranks of the group; returns when all of them have attached. The area has no
/// name then, and had none before unless ranks are in different PID namespaces (or the kernel has
/// no unnamed files): nothing is left in /dev/shm, however the processes end. Uses size * 2 * 64 KiB
/// of /dev/shm and a small control area at first, and up to size * 2 * `capacity` as exchanges need
/// it: twice the memory each time, so that it grows seldom. `capacity` is capacity() and must be
/// equal on all ranks.
///
/// The end of a peer's process is detected within kWaitSlice, plus scheduling, by ranks that wait
/// for that peer. A stopped process (SIGSTOP) counts as alive.
///
/// Errors, on every rank, if the set-up fails on any: ConfigError (rank, size, capacity),
/// ResourceError (/dev/shm too small or not shared), MismatchError (ranks disagree on size or
/// capacity), TimeoutError, which names the missing rank.
std::unique_ptr<Communicator> make_shm_communicator(Rendezvous& rendezvous, int rank, int size,
                                                    size_t capacity, const Deadline& deadline);

}  // namespace cgx
