// Messages over MPI, for make_relay_communicator(): any mpi.h, through the table of api.h.
#pragma once

#include <cstddef>
#include <memory>

#include "base/deadline.h"
#include "comm/mpi/api.h"
#include "comm/relay/point_to_point.h"
#include "comm/rendezvous.h"

namespace cgx {

struct MpiOptions {
  /// Longer messages travel in parts: counts of MPI are int, and the end of a part shows that a
  /// long message is on its way. Equal on all ranks; 1 to 2^31 - 1.
  size_t part_bytes = size_t{4} << 20;
};

/// The ranks of a group, all of one MPI job, as `rank` sees them. Collective over `rendezvous`,
/// whose keys below "mpi/" it uses; only the ranks of the group take part.
///
/// MPI is initialised if the program has not done so, and then finalised when the interpreter ends.
/// Any number of groups may overlap, and may be used from a thread each. Tags are 0 to 7. A receive
/// may be longer than its message where it has at most `part_bytes`. Nothing here waits without
/// looking at its deadline; memory of a transfer that has not ended keeps this object alive.
///
/// abort() and the failure of a transfer reach the peers, which get AbortedError; a peer that has
/// died is noticed by the launcher, which ends the job, or at the deadline.
///
/// Errors: ConfigError: the ranks are no processes of one job, MPI lacks MPI_THREAD_MULTIPLE or was
/// finalised; MismatchError: another rank refuses; TimeoutError; Error with the text of MPI.
std::shared_ptr<PointToPoint> make_mpi_point_to_point(const CgxMpiApi* api, Rendezvous& rendezvous,
                                                      int rank, int size, const Deadline& deadline,
                                                      const MpiOptions& options = {});

/// The same with the pointer that the capsule of an MPI module holds.
std::shared_ptr<PointToPoint> mpi_point_to_point_from(const void* api_table, Rendezvous& rendezvous,
                                                      int rank, int size, const Deadline& deadline);

}  // namespace cgx
