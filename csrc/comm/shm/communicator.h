// The SHM communicator: ranks of one host, as processes (or threads) that map one area of /dev/shm.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace cgx {

class ShmArea;

/// Rank 0's area, made before the ranks have met: its address then travels with what they say of
/// themselves, and costs no question of its own.
struct ShmInvitation {
  std::shared_ptr<ShmArea> area;  // of rank 0
  std::string address;            // one line; empty: rank 0 announces it later
};

/// To be called by rank 0 alone. Empty if there is no room, which make_shm_communicator() will
/// report, or much of it is needed: the ranks may turn out to be on several hosts.
ShmInvitation invite_to_shm(int size, size_t capacity);

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
/// capacity), TimeoutError, which names the missing rank. `invitation`: of the same size and
/// capacity, with its address on all ranks.
std::unique_ptr<Communicator> make_shm_communicator(Rendezvous& rendezvous, int rank, int size,
                                                    size_t capacity, const Deadline& deadline,
                                                    const ShmInvitation& invitation = {});

}  // namespace cgx
