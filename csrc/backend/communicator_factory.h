// Makes the communicators of a group: one among the ranks of a host, one among hosts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/group_context.h"
#include "backend/inner/inner_backends.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "reduce/engine.h"

namespace cgx {

/// Slots of a communicator that carries nothing, or headers only.
inline constexpr size_t kUnusedSlotBytes = 4096;

/// True if the group needs Gloo only for calls that are seldom made: the first of them makes it.
bool gloo_can_wait(const GroupContext& group);

/// The configuration for tensors of the host: NCCL carries tensors of GPUs only.
GroupConfig for_host(GroupConfig config);

class CommunicatorFactory {
 public:
  /// `watched`: the engine whose failure ends the waits for peers; null while the group is made.
  explicit CommunicatorFactory(const GroupContext& group, Engine* watched = nullptr)
      : group_(group), watched_(watched) {}

  /// The communicators for tensors of the host, and Gloo's backend in `inner` unless the group can
  /// make that later. Collective over the group.
  Communicators connect_host(const Meeting& meeting, Rendezvous& rendezvous,
                             InnerBackends& inner) const;

  /// Collective over `members`, ranks of this group of which this one is number `rank`, and which
  /// alone use `keys`.
  std::unique_ptr<Communicator> make(CommunicatorKind kind, const std::string& keys,
                                     const std::vector<int>& members, int rank) const;
  /// Over the group's Gloo; `number` as in GlooShare.
  std::unique_ptr<Communicator> share(const std::shared_ptr<GlooConnections>& gloo, int number,
                                      const std::vector<int>& members, int rank) const;
  /// The same, without the names of the group's ranks and without faults. `shm_bytes`: of a slot of
  /// shared memory.
  std::unique_ptr<Communicator> connect(CommunicatorKind kind, const std::string& keys, int rank,
                                        int size, size_t shm_bytes) const;

  /// Runs `connect` for one level of communicators ("inner", "cross", "device") and reports
  /// the outcome to the other ranks, with the word that it returns. MismatchError if it failed on
  /// another rank. Returns the words of all. Collective over the group.
  std::vector<std::string> connect_saying(const char* level, Rendezvous& rendezvous,
                                          const std::function<std::string()>& connect) const;
  void connect_level(const char* level, Rendezvous& rendezvous,
                     const std::function<void()>& connect) const;

  /// ConfigError, naming the variable, where this torch has no NCCL.
  void require_nccl(const char* variable) const;
  /// The largest exchange over a message library.
  size_t relay_bytes() const;
  /// Over the group's store, under `keys`; waits end as the constructor says.
  std::unique_ptr<Rendezvous> rendezvous(const std::string& keys) const;

 private:
  void check_kinds() const;
  void connect_intra(Communicators& communicators, Rendezvous& rendezvous,
                     const ShmInvitation& invitation) const;
  void connect_cross(Communicators& communicators,
                     const std::shared_ptr<GlooConnections>& gloo) const;
  std::unique_ptr<Communicator> make_with(
      const std::vector<int>& members,
      const std::function<std::unique_ptr<Communicator>()>& connect) const;

  const GroupContext& group_;
  Engine* const watched_;
};

}  // namespace cgx
