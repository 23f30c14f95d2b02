// What the ranks of a new group tell each other: their configuration, which must be equal, and
// their host.
#pragma once

#include <string>
#include <vector>

#include "backend/config/settings.h"
#include "base/deadline.h"
#include "comm/rendezvous.h"

namespace cgx {

/// Identity of the host as far as shared memory reaches: boot id, the /dev/shm that is mounted
/// here, and CGX_HOST_ID.
std::string host_identity(const std::string& host_id);

/// Tells the others that this rank cannot take part, so that they need not wait for it.
void refuse_handshake(Rendezvous& rendezvous, int rank, const std::string& why);

/// What every rank has said of itself.
struct Peers {
  std::vector<std::string> hosts;      // identities
  std::vector<std::string> addresses;  // for Gloo
};

/// Compares the configurations of all ranks. MismatchError on every rank that names each differing
/// setting, its values and the ranks that hold them. `address`: a line.
Peers handshake(Rendezvous& rendezvous, int rank, int size, const OptionFields& options,
                const std::string& host_id, const std::string& address, const Deadline& deadline);

/// After a part of making a group, called `part`: tells the others whether this rank has set it up
/// (`failure` is empty then, else why not) and reads the same of them. MismatchError if another
/// rank failed.
void confirm(Rendezvous& rendezvous, const std::string& part, int rank, int size,
             const std::string& failure, const Deadline& deadline);

/// Before a rank throws what kept it from making a group: tells the others that it has read all
/// that it will, and waits until all have, 3 s at most. With the exception its process may end, and
/// with the process the store that it serves: the others must have read the cause before. Throws
/// nothing.
void leave_together(Rendezvous& rendezvous, int rank, int size) noexcept;

}  // namespace cgx
