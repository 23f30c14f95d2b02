// Description of a process group: rank, size, store, configuration, hosts.
//
// Plain data, filled while the group is made and constant afterwards, except for the timeout, which
// setTimeout() changes. The group's parts take it by reference; none of them knows the group.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "backend/adapters/torch_versions.h"
#include "backend/config/settings.h"
#include "backend/factories.h"
#include "backend/health/watchdog.h"
#include "comm/rendezvous.h"
#include "comm/shm/communicator.h"
#include "reduce/engine.h"
#include "reduce/plan/topology.h"

namespace cgx {

struct GroupOptions : c10d::Backend::Options {
  GroupOptions() : c10d::Backend::Options("cgx") {}
#if CGX_TORCH_AT_LEAST(2, 14)
  // torch gives a clone to the children of a group; the base's copy would lose the fields.
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
    return c10::make_intrusive<GroupOptions>(*this);
  }
#endif
  OptionFields fields;
};

struct GroupContext {
  uint64_t serial;  // unique among all groups of this process, destroyed ones included
  pid_t process;    // that made the group; a forked child is another one
  int rank, size;
  StorePtr store;  // keys of this making of the group
  c10::intrusive_ptr<GroupOptions> options;
  GroupConfig config;
  Factories factories;
  // Known once the ranks have met.
  std::vector<std::string> hosts;
  std::string address;  // at which Gloo listens; empty: where it does by itself
  bool on_one_host = true;
  std::shared_ptr<Watchdog> watchdog;  // works hold it too

  std::chrono::milliseconds timeout() const { return options->timeout; }
  bool logs(LogLevel level) const { return config.log >= level; }
  /// "rank 0 of 2, group 'x': ", in front of a line of the log.
  std::string title() const;
};

/// A group that is about to be made over `store`, which gets keys of its own. Throws, on the other
/// ranks too, for a bad value in the environment or the options.
GroupContext begin_group(const StorePtr& store, int rank, int size,
                         c10::intrusive_ptr<GroupOptions> options, Factories factories);

/// What comes of meet(): the hosts, rank 0's area of shared memory, if it has made one, and the
/// addresses of all ranks for Gloo, if all have said them.
struct Meeting {
  Topology topology;
  ShmInvitation invitation;
  std::vector<std::string> addresses;
};

/// Collective: makes the watchdog, compares the configurations of all ranks and finds their hosts.
Meeting meet(GroupContext& group, Rendezvous& rendezvous);

/// The group's store under `keys`.
StorePtr store_at(const GroupContext& group, const std::string& keys);

/// Waits on such a store end when `watched` fails; null while there is no engine that could fail.
std::unique_ptr<Rendezvous> rendezvous_over(StorePtr store, Engine* watched);

}  // namespace cgx
