#include "backend/communicator_factory.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/config/handshake.h"
#include "base/error.h"
#include "comm/gloo/error_text.h"
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

bool gloo_can_wait(const GroupContext& group) {
  return group.size == 1 ||
         (group.on_one_host && for_host(group.config).intra == CommunicatorKind::kShm);
}

Communicators CommunicatorFactory::connect_host(const Meeting& meeting, Rendezvous& rendezvous,
                                                InnerBackends& inner) const {
  const Topology& topology = meeting.topology;
  const GroupConfig config = for_host(group_.config);
  Communicators communicators{topology, group_.rank, nullptr, nullptr,
                              communicator_name(config, topology)};
  const bool inside = group_.on_one_host || topology.two_levels();
  const bool intra_over_gloo = config.intra == CommunicatorKind::kGloo && group_.size > 1;
  const auto connect_inside = [&] {
    check_kinds();
    if (inside && !intra_over_gloo) connect_intra(communicators, rendezvous, meeting.invitation);
  };
  if (group_.on_one_host && group_.config.intra == CommunicatorKind::kShm) {
    // Each rank waits for the outcome on all others: nothing is left to confirm.
    connect_inside();
    return communicators;
  }
  const bool wants_nccl = group_.config.intra == CommunicatorKind::kNccl ||
                          group_.config.cross == CommunicatorKind::kNccl;
  std::vector<std::string> addresses = meeting.addresses;
  // Those inside hosts first: the other hosts need not wait for one that cannot go on. Where all ranks
  // have said their addresses, and nothing is to be made that could fail, there is nothing to say.
  if (inside || addresses.empty() || wants_nccl) {
    addresses = connect_saying("inner", rendezvous, [&]() -> std::string {
      connect_inside();
      return gloo_can_wait(group_) ? "" : group_.factories.report_addresses();
    });
  }
  if (gloo_can_wait(group_)) return communicators;
  connect_level("gloo", rendezvous, [&] { inner.connect_gloo(addresses); });
  const auto gloo = inner.connections();
  if (inside && intra_over_gloo) {
    const std::vector<int>& members = topology.host(topology.host_of(group_.rank));
    if (members.size() > 1) {
      communicators.intra = share(gloo, 0, members, topology.local_of(group_.rank));
    }
  }
  if (group_.on_one_host) return communicators;
  if (config.cross == CommunicatorKind::kGloo) {
    connect_cross(communicators, gloo);
  } else {
    connect_level("cross", rendezvous, [&] { connect_cross(communicators, gloo); });
  }
  return communicators;
}

std::vector<std::string> CommunicatorFactory::connect_saying(
    const char* level, Rendezvous& rendezvous, const std::function<std::string()>& connect) const {
  const Deadline deadline = Deadline::after(group_.timeout());
  std::string word;
  try {
    word = connect();
  } catch (const std::exception& e) {
    // Some ranks have no communicator of this level: without this they would go on alone.
    confirm(rendezvous, level, group_.rank, group_.size, plain_text(e), deadline);
    throw;
  }
  return confirm(rendezvous, level, group_.rank, group_.size, "", deadline, word);
}

void CommunicatorFactory::connect_level(const char* level, Rendezvous& rendezvous,
                                        const std::function<void()>& connect) const {
  connect_saying(level, rendezvous, [&] {
    connect();
    return std::string();
  });
}

void CommunicatorFactory::check_kinds() const {
  if (group_.config.intra == CommunicatorKind::kNccl) require_nccl("CGX_INNER_COMMUNICATOR_TYPE");
  if (!group_.on_one_host && group_.config.cross == CommunicatorKind::kNccl) {
    require_nccl("CGX_CROSS_COMMUNICATOR_TYPE");
  }
}

void CommunicatorFactory::connect_intra(Communicators& communicators, Rendezvous& rendezvous,
                                        const ShmInvitation& invitation) const {
  const int host = communicators.topology.host_of(group_.rank);
  const std::vector<int>& members = communicators.topology.host(host);
  const CommunicatorKind kind = for_host(group_.config).intra;
  const int rank = communicators.topology.local_of(group_.rank);
  if (!group_.on_one_host && members.size() == 1) return;
  if (!group_.on_one_host || group_.size == 1 || kind != CommunicatorKind::kShm) {
    communicators.intra = make(kind, str_of("host", host), members, rank);
    return;
  }
  communicators.intra = make_with(members, [&] {
    return make_shm_communicator(rendezvous, rank, group_.size, group_.config.shm_segment_bytes,
                                 Deadline::after(group_.timeout()), invitation);
  });
}

void CommunicatorFactory::connect_cross(Communicators& communicators,
                                        const std::shared_ptr<GlooConnections>& gloo) const {
  const Topology& topology = communicators.topology;
  const CommunicatorKind kind = for_host(group_.config).cross;
  const auto connect = [&](int number, const std::string& keys, const std::vector<int>& members,
                           int rank) {
    return kind == CommunicatorKind::kGloo ? share(gloo, number, members, rank)
                                           : make(kind, keys, members, rank);
  };
  if (topology.in_team(group_.rank)) {
    const int team = topology.local_of(group_.rank);
    communicators.cross =
        connect(1, str_of("team", team), topology.team(team), topology.host_of(group_.rank));
  }
  if (!topology.two_levels()) return;
  std::vector<int> all(static_cast<size_t>(group_.size));
  std::iota(all.begin(), all.end(), 0);
  communicators.mesh = connect(2, "mesh", all, group_.rank);
}

std::unique_ptr<Communicator> CommunicatorFactory::share(
    const std::shared_ptr<GlooConnections>& gloo, int number, const std::vector<int>& members,
    int rank) const {
  return make_with(members, [&] {
    return make_relay_communicator(make_c10d_point_to_point(gloo, {number, members, rank}),
                                   relay_bytes());
  });
}

std::unique_ptr<Communicator> CommunicatorFactory::make(CommunicatorKind kind,
                                                        const std::string& keys,
                                                        const std::vector<int>& members,
                                                        int rank) const {
  if (group_.size == 1) return std::move(make_in_process_group(1, kUnusedSlotBytes).front());
  return make_with(members, [&] {
    return connect(kind, keys, rank, static_cast<int>(members.size()),
                   group_.config.shm_segment_bytes);
  });
}

std::unique_ptr<Communicator> CommunicatorFactory::make_with(
    const std::vector<int>& members,
    const std::function<std::unique_ptr<Communicator>()>& connect) const {
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = connect();
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
      // A backend of its own: of the group's Gloo, share() gives a part.
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
