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

/// What the ranks have said of themselves.
struct Peers {
  std::vector<std::string> hosts;      // identities, by rank
  std::string invitation;              // of rank 0
  std::vector<std::string> addresses;  // of Gloo, by rank; none unless all ranks have said theirs
};

/// Compares the configurations of all ranks. MismatchError on every rank that names each differing
/// setting, its values and the ranks that hold them. `invitation`: of rank 0, a line for the other
/// ranks. `addresses`: a line, or empty.
Peers handshake(Rendezvous& rendezvous, int rank, int size, const OptionFields& options,
                const std::string& host_id, const std::string& invitation,
                const std::string& addresses, const Deadline& deadline);

/// After a step of making a group, called `part`: reports to the other ranks whether it worked on
/// this rank (`failure`: empty, or the reason why not) and reads their reports. MismatchError if
/// another rank failed. Returns what each rank has to say for the next step: `word`, by rank.
std::vector<std::string> confirm(Rendezvous& rendezvous, const std::string& part, int rank,
                                 int size, const std::string& failure, const Deadline& deadline,
                                 const std::string& word = "");

/// Called before a rank throws the error that kept it from making a group: waits until all ranks
/// have called it, 3 s at most. The exception may end the process, and with it the store that the
/// process serves: the other ranks must have read the cause before. Throws nothing.
void leave_together(Rendezvous& rendezvous, int rank, int size) noexcept;

}  // namespace cgx
