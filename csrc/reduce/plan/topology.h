// The hosts of a group: lists of ranks, and the teams that communicate between hosts.
//
//   hosts    lists of ranks; every host has at least one
//   teams    team k holds rank number k of every host: it reduces shard k of a tensor across the
//            hosts. There are as many teams as the smallest host has ranks (one with leader_only),
//            so every team has one rank on every host, and nothing is sent twice by ranks of one
//            host.
//
// The same on all ranks of a group. Thread-safety: immutable.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cgx {

class Topology {
 public:
  /// labels[r] names the host of rank r; equal labels mean one host. ConfigError if there is none.
  /// Hosts are numbered in the order of their first rank.
  explicit Topology(const std::vector<std::string>& labels, bool leader_only = false);

  /// `size` ranks on one host.
  static Topology one_host(int size);

  int size() const { return static_cast<int>(host_of_.size()); }
  int host_count() const { return static_cast<int>(hosts_.size()); }
  int teams() const { return teams_; }

  /// Ranks of a host, ascending.
  const std::vector<int>& host(int number) const { return hosts_[static_cast<size_t>(number)]; }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  /// Number of a rank among the ranks of its host.
  int local_of(int rank) const { return local_of_[static_cast<size_t>(rank)]; }

  /// The team whose member on this host works for `rank`; the rank's own team if it has one.
  int team_of(int rank) const { return local_of(rank) % teams_; }
  bool in_team(int rank) const { return local_of(rank) < teams_; }
  /// One rank per host, in the order of the hosts.
  std::vector<int> team(int number) const;

  /// Several hosts, at least one of which has several ranks: two levels.
  bool two_levels() const { return host_count() > 1 && host_count() < size(); }

 private:
  std::vector<std::vector<int>> hosts_;
  std::vector<int> host_of_;
  std::vector<int> local_of_;
  int teams_ = 1;
};

}  // namespace cgx
