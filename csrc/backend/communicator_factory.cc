#include "backend/communicator_factory.h"

#include <algorithm>
#include <utility>

#include "backend/config/handshake.h"
#include "base/error.h"
#include "comm/gloo/point_to_point.h"
#include "comm/hooks.h"
#include "comm/in_process.h"
#include "comm/mpi/point_to_point.h"
#include "comm/relay/relay.h"
#include "comm/shm/communicator.h"

namespace cgx {
namespace {

const char* name_of(CommunicatorKind communicator) {
  switch (communicator) {
    case CommunicatorKind::kShm:
      return "shm";
    case CommunicatorKind::kMpi:
      return "mpi";
    case CommunicatorKind::kGloo:
      return "gloo";
    case CommunicatorKind::kNccl:
      return "nccl";
  }
  return "unknown communicator";
}

// The same on all ranks, also where a rank has only one of the communicators.
std::string communicator_name(const GroupConfig& config, const Topology& topology) {
  if (topology.size() == 1) return "in-process";
  if (topology.host_count() == 1) return name_of(config.intra);
  if (!topology.two_levels()) return name_of(config.cross);
  return str_of(name_of(config.intra), "+", name_of(config.cross));
}

}  // namespace

GroupConfig for_host(GroupConfig config) {
  if (config.intra == CommunicatorKind::kNccl) config.intra = CommunicatorKind::kShm;
  if (config.cross == CommunicatorKind::kNccl) config.cross = CommunicatorKind::kGloo;
  return config;
}

Communicators CommunicatorFactory::connect_host(const Topology& topology,
                                                Rendezvous& rendezvous) const {
  Communicators communicators{topology, group_.rank, nullptr, nullptr,
                              communicator_name(for_host(group_.config), topology)};
  if (group_.on_one_host && group_.config.intra == CommunicatorKind::kShm) {
    // Each rank waits for the outcome on all others: nothing is left to confirm.
    connect_intra(communicators);
    return communicators;
  }
  // Those inside hosts first: the other hosts need not wait for one that cannot go on.
  if (group_.on_one_host || topology.two_levels()) {
    connect_level("inner", rendezvous, [&] { connect_intra(communicators); });
  }
  if (!group_.on_one_host) {
    connect_level("cross", rendezvous, [&] { connect_cross(communicators); });
  }
  return communicators;
}

void CommunicatorFactory::connect_level(const char* level, Rendezvous& rendezvous,
                                        const std::function<void()>& connect) const {
  const Deadline deadline = Deadline::after(group_.timeout());
  try {
    connect();
  } catch (const std::exception& e) {
    // Some ranks have no communicator of this level: without this they would go on alone.
    confirm(rendezvous, level, group_.rank, group_.size, e.what(), deadline);
    throw;
  }
  confirm(rendezvous, level, group_.rank, group_.size, "", deadline);
}

void CommunicatorFactory::connect_intra(Communicators& communicators) const {
  const int host = communicators.topology.host_of(group_.rank);
  const std::vector<int>& members = communicators.topology.host(host);
  const char* variable = "CGX_INNER_COMMUNICATOR_TYPE";
  if (group_.config.intra == CommunicatorKind::kNccl) require_nccl(variable);
  if (!group_.on_one_host && members.size() == 1) return;
  communicators.intra = make(for_host(group_.config).intra, str_of("host", host), members,
                             communicators.topology.local_of(group_.rank));
}

void CommunicatorFactory::connect_cross(Communicators& communicators) const {
  const char* variable = "CGX_CROSS_COMMUNICATOR_TYPE";
  if (group_.config.cross == CommunicatorKind::kNccl) require_nccl(variable);
  if (group_.on_one_host || !communicators.topology.in_team(group_.rank)) return;
  const int team = communicators.topology.local_of(group_.rank);
  communicators.cross =
      make(for_host(group_.config).cross, str_of("team", team), communicators.topology.team(team),
           communicators.topology.host_of(group_.rank));
}

std::unique_ptr<Communicator> CommunicatorFactory::make(CommunicatorKind kind,
                                                        const std::string& keys,
                                                        const std::vector<int>& members,
                                                        int rank) const {
  if (group_.size == 1) return std::move(make_in_process_group(1, kUnusedSlotBytes).front());
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = connect(kind, keys, rank, static_cast<int>(members.size()),
                           group_.config.shm_segment_bytes);
  } catch (const std::exception& e) {
    if (static_cast<int>(members.size()) == group_.size) throw;
    // Communicators count their own ranks.
    Failure failure = failure_of(e);
    std::string text;
    for (size_t i = 0; i < members.size(); ++i) text += str_of(i == 0 ? "" : ", ", members[i]);
    failure.text = str_of("communicator among the ranks ", text, " of the group, called 0 to ",
                          members.size() - 1, " here: ", failure.text);
    if (dynamic_cast<const ConfigError*>(&e) != nullptr) throw ConfigError(failure.text);
    throw_failure(failure);
  }
  communicator->call_ranks(members);
  return hooked(std::move(communicator));
}

std::unique_ptr<Communicator> CommunicatorFactory::connect(CommunicatorKind kind,
                                                           const std::string& keys, int rank,
                                                           int size, size_t shm_bytes) const {
  const Deadline deadline = Deadline::after(group_.timeout());
  const StorePtr store = store_at(group_, keys);
  auto meeting = rendezvous_over(store, watched_);
  switch (kind) {
    case CommunicatorKind::kShm:
      return make_shm_communicator(*meeting, rank, size, shm_bytes, deadline);
    case CommunicatorKind::kGloo:
      // A backend of its own: its messages must not mix with messages of dist.send/recv.
      return make_relay_communicator(make_c10d_point_to_point(group_.factories.inner(
                                         store, rank, size, group_.timeout(), group_.address)),
                                     relay_bytes());
    case CommunicatorKind::kMpi:
      return make_relay_communicator(
          mpi_point_to_point_from(group_.factories.mpi(), *meeting, rank, size, deadline),
          relay_bytes());
    case CommunicatorKind::kNccl:
      break;  // carries no memory of the host
  }
  throw ConfigError("unknown communicator");
}

std::unique_ptr<Rendezvous> CommunicatorFactory::rendezvous(const std::string& keys) const {
  return rendezvous_over(store_at(group_, keys), watched_);
}

void CommunicatorFactory::require_nccl(const char* variable) const {
  if (group_.factories.inner_nccl) return;
  throw ConfigError(str_of(variable,
                           "='NCCL' needs a torch that was built with NCCL, and this one ",
                           "is not; use MPI, GLOO", group_.on_one_host ? " or SHM" : ""));
}

size_t CommunicatorFactory::relay_bytes() const {
  return std::max(group_.config.fusion_buffer_bytes, group_.config.shm_segment_bytes);
}

}  // namespace cgx
