// Agreement of the ranks of a group on one communicator of MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/deadline.h"
#include "comm/mpi/process.h"
#include "comm/rendezvous.h"

namespace cgx {

/// Tags of a group: kMpiUserTags for its messages, one more for aborts. Groups that
/// share a communicator get different ones.
inline constexpr int kMpiUserTags = 8;
inline constexpr int kMpiAbortTag = 8;
inline constexpr int kMpiTagsPerGroup = 16;

struct MpiGroup {
  uint64_t comm = 0;  // has the ranks of the group
  int first_tag = 0;
  std::vector<int> world_ranks;
};

/// Collective over the ranks of `rendezvous`. Checks that they are different processes of one MPI
/// job over one library, and that they agree on `part_bytes`; then takes a communicator that all of
/// them have from an earlier group of the same ranks in the same order, or makes one: MPICH has
/// some 2000 of them in all, and they can only be freed by all members at once.
///
/// ConfigError: the ranks are no such processes (e.g. started by torchrun, where each is an MPI
/// world of its own); MismatchError: another rank has refused to take part; TimeoutError.
MpiGroup meet_over_mpi(MpiProcess& process, Rendezvous& rendezvous, int rank, int size,
                       size_t part_bytes, const Deadline& deadline);

/// Makes meet_over_mpi() fail on the other ranks: this one will not take part.
void refuse_to_meet_over_mpi(Rendezvous& rendezvous, int rank, const std::string& why);

}  // namespace cgx
