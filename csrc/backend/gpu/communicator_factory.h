// Makes the communicators for the tensors of a GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/communicator_factory.h"
#include "backend/gpu/lane.h"

namespace cgx {

/// Both functions are collective over `members`, ranks of the group; this process is member number
/// `rank`. Only the members use `keys`.
class GpuCommunicatorFactory {
 public:
  /// All outlive this object. `host`: the group's engine for tensors of the host. `hosts`: of its
  /// communicators.
  GpuCommunicatorFactory(const GroupContext& group, const Engine& host,
                         const CommunicatorFactory& hosts, const GpuLane& lane)
      : group_(group), host_(host), hosts_(hosts), lane_(lane) {}

  /// `variable`: the one that says `kind`, for errors.
  std::unique_ptr<Communicator> make(CommunicatorKind kind, const char* variable,
                                     const std::string& keys, const std::vector<int>& members,
                                     int rank) const;

 private:
  /// Messages go from GPU to GPU if these reach each other's memory, else through pinned memory of
  /// the host.
  std::unique_ptr<Communicator> make_shm(const std::string& keys, const std::vector<int>& members,
                                         int rank) const;

  const GroupContext& group_;
  const Engine& host_;
  const CommunicatorFactory& hosts_;
  const GpuLane& lane_;
};

}  // namespace cgx
