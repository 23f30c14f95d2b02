#include "backend/group_context.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "backend/adapters/store_rendezvous.h"
#include "backend/config/handshake.h"
#include "backend/work/flight_record.h"
#include "base/error.h"
#include "codec/ops/level.h"
#include "comm/gloo/error_text.h"

namespace cgx {
namespace {

std::atomic<uint64_t> next_serial{0};

// A store outlives the groups made over it, and torchrun's serves all that one script makes, under
// names that repeat after destroy_process_group(): every making gets keys of its own. Ranks make a
// group equally often.
StorePtr fresh_keys(const StorePtr& store, int rank) {
  const int64_t making = store->add(str_of("cgx/making/", rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(str_of("making", making), store);
}

// This rank's own environment and options. The other ranks get the error of a bad value, too.
GroupConfig resolve_or_refuse(const OptionFields& fields, const StorePtr& store, int rank,
                              int size) {
  try {
    FlightRecord::instance();  // refuses a bad TORCH_FR_BUFFER_SIZE
    default_cpu_level();       // and CGX_CPU_LEVEL
    return resolve_group(fields);
  } catch (const std::exception& e) {
    auto rendezvous = make_store_rendezvous(store);
    refuse_handshake(*rendezvous, rank, plain_text(e));
    leave_together(*rendezvous, rank, size);
    throw;
  }
}

// The line that Gloo needs where ranks are on several hosts, if this rank knows that they are before
// it has met the others: that saves an exchange. Else empty. The other ranks get its error, too.
std::string addresses_if_several_hosts(const GroupContext& group, Rendezvous& rendezvous) {
  const char* here = std::getenv("LOCAL_WORLD_SIZE");  // torchrun's
  if (here == nullptr || std::atoi(here) < 1 || group.size <= std::atoi(here)) return {};
  try {
    return group.factories.report_addresses();
  } catch (const std::exception& e) {
    refuse_handshake(rendezvous, group.rank, plain_text(e));
    throw;
  }
}

}  // namespace

std::string GroupContext::title() const {
  return str_of("rank ", rank, " of ", size, ", group '", options->group_name, "': ");
}

GroupContext begin_group(const StorePtr& store, int rank, int size,
                         c10::intrusive_ptr<GroupOptions> options, Factories factories) {
  GroupContext group{};
  group.serial = next_serial++;
  group.process = getpid();
  group.rank = rank;
  group.size = size;
  group.store = fresh_keys(store, rank);
  group.options = std::move(options);
  group.config = resolve_or_refuse(group.options->fields, group.store, rank, size);
  group.factories = std::move(factories);
  return group;
}

Meeting meet(GroupContext& group, Rendezvous& rendezvous) {
  const GroupOptions& options = *group.options;
  const Deadline deadline = Deadline::after(group.timeout());
  group.watchdog = std::make_shared<Watchdog>(
      std::make_shared<const GroupLabel>(GroupLabel{
          group.serial, options.group_name, options.group_desc, options.global_ranks_in_group,
          group.rank, group.size, group.logs(LogLevel::kDebug)}),
      group.store);
  ShmInvitation invitation;
  if (group.rank == 0 && group.size > 1 && group.config.intra == CommunicatorKind::kShm) {
    invitation = invite_to_shm(group.size, group.config.shm_segment_bytes);
  }
  // First, so that a disagreement is found before anything is built on it.
  Peers peers =
      handshake(rendezvous, group.rank, group.size, options.fields, group.config.host_id,
                invitation.address, addresses_if_several_hosts(group, rendezvous), deadline);
  invitation.address = std::move(peers.invitation);
  group.hosts = std::move(peers.hosts);
  Topology topology(group.hosts, group.config.leader_only);
  group.on_one_host = topology.host_count() == 1;
  return {std::move(topology), std::move(invitation), std::move(peers.addresses)};
}

StorePtr store_at(const GroupContext& group, const std::string& keys) {
  return c10::make_intrusive<c10d::PrefixStore>(keys, group.store);
}

std::unique_ptr<Rendezvous> rendezvous_over(StorePtr store, Engine* watched) {
  if (watched == nullptr) return make_store_rendezvous(std::move(store));
  return make_store_rendezvous(std::move(store), [watched] {
    if (const auto failure = watched->failure()) throw_failure(*failure);
  });
}

}  // namespace cgx
