// Exchange between the ranks of a new group: their configurations, which must be equal, and their
// hosts.
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

/// Tells the other ranks that this rank cannot take part, so that they need not wait for it.
void refuse_handshake(Rendezvous& rendezvous, int rank, const std::string& why);

/// Hosts and addresses of all ranks, by rank.
struct Peers {
  std::vector<std::string> hosts;      // identities
  std::vector<std::string> addresses;  // for Gloo
};

/// Compares the configurations of all ranks. MismatchError on every rank that names each differing
/// setting, its values and the ranks that hold them. `address`: a line.
Peers handshake(Rendezvous& rendezvous, int rank, int size, const OptionFields& options,
                const std::string& host_id, const std::string& address, const Deadline& deadline);

/// After a step of making a group, called `part`: reports to the other ranks whether it worked on
/// this rank (`failure`: empty, or the reason why not) and reads their reports. MismatchError if
/// another rank failed.
void confirm(Rendezvous& rendezvous, const std::string& part, int rank, int size,
             const std::string& failure, const Deadline& deadline);

/// Called before a rank throws the error that kept it from making a group: waits until all ranks
/// have called it, 3 s at most. The exception may end the process, and with it the store that the
/// process serves: the other ranks must have read the cause before. Throws nothing.
void leave_together(Rendezvous& rendezvous, int rank, int size) noexcept;

}  // namespace cgx
