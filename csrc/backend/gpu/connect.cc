#include "backend/gpu/connect.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "backend/communicator_factory.h"
#include "backend/config/handshake.h"
#include "backend/gpu/communicator_factory.h"
#include "base/error.h"
#include "base/log.h"

namespace cgx {
namespace {

// Bytes that NCCL gets at once. Fewer only pay where the link is slower than the GPU.
constexpr size_t kLockstepArea = size_t{4} << 20;

// The exchanges that all ranks of the group can take inside their hosts. `mine`: null on a rank
// that is alone on its host.
Budget agree_on_room(Rendezvous& rendezvous, int rank, int size, const Messages* mine,
                     const Deadline& deadline) {
  const size_t capacity = mine != nullptr ? mine->capacity() : kNoLimit;
  const size_t longest = mine != nullptr ? mine->longest() : kNoLimit;
  rendezvous.set(str_of("gpu-room/", rank), str_of(capacity, " ", longest));
  Budget least{kNoLimit, kNoLimit, kNoLimit};
  for (int r = 0; r < size; ++r) {
    size_t room = 0, limit = 0;
    std::istringstream(rendezvous.get(str_of("gpu-room/", r), deadline)) >> room >> limit;
    least = {std::min(least.wanted, room), std::min(least.most, room),
             std::min(least.limit, limit)};
  }
  return least;
}

// All ranks must agree whether NCCL is there: the communicator that AUTO means follows from it.
void agree_on_nccl(Rendezvous& rendezvous, int rank, int size, bool mine,
                   const Deadline& deadline) {
  rendezvous.set(str_of("gpu-nccl/", rank), mine ? "1" : "0");
  for (int r = 0; r < size; ++r) {
    const bool theirs = rendezvous.get(str_of("gpu-nccl/", r), deadline) == "1";
    if (theirs == mine) continue;
    throw ConfigError(str_of("rank ", mine ? rank : r, " has a torch with NCCL, rank ",
                             mine ? r : rank, " one without; for CUDA tensors set ",
                             "CGX_CROSS_COMMUNICATOR_TYPE and CGX_CUDA_BACKEND to GLOO, or "
                             "install equal versions"));
  }
}

// The communicator of CUDA tensors between hosts.
CommunicatorKind cross_of(const GroupContext& group) {
  const bool nccl = group.config.cross_is_automatic && group.factories.inner_nccl;
  return nccl ? CommunicatorKind::kNccl : group.config.cross;
}

// ConfigError if the configuration asks for something that CUDA tensors cannot have. `cross`: their
// communicator between hosts.
void refuse_impossible(const GroupConfig& config, const Topology& topology,
                       CommunicatorKind cross) {
  const bool two_levels = topology.two_levels(), on_one_host = topology.host_count() == 1;
  if (two_levels && config.intra == CommunicatorKind::kNccl) {
    throw ConfigError(
        str_of("CGX_INNER_COMMUNICATOR_TYPE='NCCL' for CUDA tensors is for groups on "
               "one host; this one spans ",
               topology.host_count(), " with several ranks on one: use SHM"));
  }
  const int team = two_levels ? topology.host_count() : topology.size();
  if (team > static_cast<int>(gpu::kMostMessages)) {
    throw ConfigError(str_of("CUDA tensors are reduced among at most ", gpu::kMostMessages,
                             " ranks (with several hosts: hosts) at once; here are ", team));
  }
  const bool nccl = (on_one_host ? config.intra : cross) == CommunicatorKind::kNccl;
  const bool ipc = (on_one_host || two_levels) && config.intra == CommunicatorKind::kShm;
  if (config.checksum && (nccl || ipc)) {
    throw ConfigError(
        "CGX_CHECKSUM=1 is for messages that pass through host memory; messages of CUDA tensors do "
        "with CGX_INNER_COMMUNICATOR_TYPE and CGX_CROSS_COMMUNICATOR_TYPE MPI or GLOO");
  }
  if (nccl && config.nonfinite == NonFinite::kRaise) {
    throw ConfigError(
        "nonfinite='raise' has the host look at the values, which calls over NCCL do not wait for; "
        "use another communicator for CUDA tensors, or nonfinite='propagate'");
  }
}

// As communicator_name() of the host's, by what there is.
std::string name_of(const Communicators& communicators) {
  std::string name;
  for (const Communicator* communicator : {communicators.intra.get(), communicators.cross.get()}) {
    if (communicator != nullptr) name += str_of(name.empty() ? "" : "+", communicator->name());
  }
  return name;
}

std::unique_ptr<GpuLane> connect(const GroupContext& group, Engine& host,
                                 const CommunicatorFactory& hosts, c10::Device device,
                                 const std::string& keys, Rendezvous& rendezvous) {
  std::unique_ptr<GpuLane> lane;
  // A rank may lack the driver or the kernels: without this step the others would wait for it.
  hosts.connect_level("device", rendezvous,
                      [&] { lane = std::make_unique<GpuLane>(device, group.factories.kernels); });
  const GroupConfig& config = group.config;
  const Topology& topology = host.topology();
  const bool two_levels = topology.two_levels();
  const bool has_nccl = static_cast<bool>(group.factories.inner_nccl);
  if (config.cross_is_automatic || config.cuda_backend == "AUTO") {
    agree_on_nccl(rendezvous, group.rank, group.size, has_nccl, Deadline::after(group.timeout()));
  }
  const CommunicatorKind cross = cross_of(group);
  if (group.size > 1) refuse_impossible(config, topology, cross);
  const GpuCommunicatorFactory factory(group, host, hosts, *lane);
  Communicators communicators{topology, group.rank, nullptr, nullptr, ""};
  Budget room;
  if (group.on_one_host || two_levels) {
    hosts.connect_level("inner", rendezvous, [&] {
      const int number = topology.host_of(group.rank);
      const std::vector<int>& members = topology.host(number);
      if (!group.on_one_host && members.size() == 1) return;
      communicators.intra =
          factory.make(config.intra, "CGX_INNER_COMMUNICATOR_TYPE", str_of(keys, "/host", number),
                       members, topology.local_of(group.rank));
    });
    room = agree_on_room(rendezvous, group.rank, group.size, communicators.intra.get(),
                         Deadline::after(group.timeout()));
  }
  if (!group.on_one_host) {
    hosts.connect_level("cross", rendezvous, [&] {
      if (!topology.in_team(group.rank)) return;
      const int number = topology.local_of(group.rank);
      communicators.cross =
          factory.make(cross, "CGX_CROSS_COMMUNICATOR_TYPE", str_of(keys, "/team", number),
                       topology.team(number), topology.host_of(group.rank));
    });
  }
  EngineOptions options = engine_options(config, topology);
  options.direct_from = 0;  // direct transfers need host memory
  if (room.most > 0 && config.intra == CommunicatorKind::kShm) options.intra = room;
  // The same on all ranks, also on ranks without a communicator between hosts.
  const bool lockstep = (group.on_one_host ? config.intra : cross) == CommunicatorKind::kNccl;
  if (lockstep) options.segment_bytes = std::max(options.segment_bytes, kLockstepArea);
  communicators.name = name_of(communicators);
  auto engine = std::make_unique<Engine>(std::move(communicators), options,
                                         [watchdog = group.watchdog](Failure failure) {
                                           return watchdog->explain(std::move(failure));
                                         });
  // Not with two levels: the calling thread would have to wait for peers inside the host.
  const bool on_caller = lockstep && !two_levels;
  if (group.logs(LogLevel::kInfo)) {
    log_line(str_of(group.title(), device.str(), " over ", engine->communicator()));
  }
  if (lockstep && !group.on_one_host) group.watchdog->answer_always();
  lane->serve(std::move(engine), lockstep, on_caller);
  return lane;
}

}  // namespace

std::unique_ptr<GpuLane> connect_gpu(const GroupContext& group, Engine& host, c10::Device device,
                                     const std::string& keys) {
  const CommunicatorFactory hosts(group, &host);
  auto rendezvous = hosts.rendezvous(keys);
  try {
    return connect(group, host, hosts, device, keys, *rendezvous);
  } catch (...) {
    leave_together(*rendezvous, group.rank, group.size);
    throw;
  }
}

bool gpu_moves(const GroupContext& group, const Topology& topology) {
  const GroupConfig& config = group.config;
  if (topology.two_levels() || config.cuda_backend == "NCCL") return false;
  if (group.size == 1) return true;
  const CommunicatorKind only = group.on_one_host ? config.intra : cross_of(group);
  // There is no lane for the other two, which the inner backend moves.
  const bool unchecked = config.checksum && only == CommunicatorKind::kShm;
  const bool too_many = group.size > static_cast<int>(gpu::kMostMessages);
  return only != CommunicatorKind::kNccl && !unchecked && !too_many;
}

}  // namespace cgx
