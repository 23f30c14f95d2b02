#include "reduce/plan/topology.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace cgx {

Topology::Topology(const std::vector<std::string>& labels, bool leader_only) {
  if (labels.empty()) throw ConfigError("a topology of 0 ranks; allowed: 1 or more");
  std::unordered_map<std::string, int> numbers;
  for (size_t rank = 0; rank < labels.size(); ++rank) {
    const int host = numbers.try_emplace(labels[rank], host_count()).first->second;
    if (host == host_count()) hosts_.emplace_back();
    std::vector<int>& ranks = hosts_[static_cast<size_t>(host)];
    host_of_.push_back(host);
    local_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  size_t smallest = hosts_.front().size();
  for (const auto& ranks : hosts_) smallest = std::min(smallest, ranks.size());
  teams_ = leader_only ? 1 : static_cast<int>(smallest);
}

Topology Topology::one_host(int size) {
  return Topology(std::vector<std::string>(static_cast<size_t>(std::max(size, 0))));
}

std::vector<int> Topology::team(int number) const {
  std::vector<int> ranks;
  for (const auto& host : hosts_) ranks.push_back(host[static_cast<size_t>(number)]);
  return ranks;
}

}  // namespace cgx
