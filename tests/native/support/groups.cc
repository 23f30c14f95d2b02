#include "groups.h"

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "check.h"
#include "comm/in_process.h"
#include "comm/relay/relay.h"
#include "comm/shm/communicator.h"
#include "reduce/schedule/two_levels.h"

namespace cgx::native {
namespace {

class LocalRendezvous final : public Rendezvous {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline.left(), [&] { return values_.count(key) != 0; })) {
      throw TimeoutError(str_of("key ", key, " did not come"));
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// Gives the communicators of a new group to the ranks that are its members.
void connect(std::vector<Communicators>& communicators, EngineGroup& group,
             const std::vector<int>& members, std::unique_ptr<Communicator> Communicators::* link,
             CommunicatorKind kind, size_t bytes, int slots) {
  Group made = make_group(kind, static_cast<int>(members.size()), bytes, slots);
  if (made.network) group.networks.push_back(made.network);
  for (size_t i = 0; i < members.size(); ++i) {
    made.ranks[i]->call_ranks(members);
    communicators[static_cast<size_t>(members[i])].*link = std::move(made.ranks[i]);
  }
}

}  // namespace

void run_ranks(int size, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::exception_ptr check, error;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const CheckFailed&) {
        std::lock_guard lock(mutex);
        if (!check) check = std::current_exception();
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (check) std::rethrow_exception(check);
  if (error) std::rethrow_exception(error);
}

std::shared_ptr<Rendezvous> local_rendezvous() { return std::make_shared<LocalRendezvous>(); }

std::vector<Communicator*> Group::pointers() const {
  std::vector<Communicator*> all;
  for (const auto& rank : ranks) all.push_back(rank.get());
  return all;
}

Group make_group(CommunicatorKind communicator, int size, size_t capacity, int slots) {
  Group group;
  switch (communicator) {
    case CommunicatorKind::kInProcess:
      group.ranks = make_in_process_group(size, capacity, slots);
      break;
    case CommunicatorKind::kShm: {
      group.ranks.resize(static_cast<size_t>(size));
      auto rendezvous = local_rendezvous();
      run_ranks(size, [&](int rank) {
        group.ranks[static_cast<size_t>(rank)] =
            make_shm_communicator(*rendezvous, rank, size, capacity, patience());
      });
      break;
    }
    case CommunicatorKind::kRelay:
    case CommunicatorKind::kLazyRelay:
      group.network = std::make_shared<MockNetwork>(size);
      group.network->set_lazy(communicator == CommunicatorKind::kLazyRelay);
      for (int rank = 0; rank < size; ++rank) {
        group.ranks.push_back(make_relay_communicator(group.network->endpoint(rank), capacity));
      }
      break;
  }
  return group;
}

EngineGroup make_engines(const Hosts& hosts, EngineOptions options, CommunicatorKind intra,
                         CommunicatorKind cross, const Wrap& wrap) {
  const Topology topology(hosts);
  EngineGroup group;
  std::vector<Communicators> communicators;
  for (int rank = 0; rank < topology.size(); ++rank) {
    communicators.push_back({topology, rank, nullptr, nullptr, "native test"});
  }
  const bool across = topology.host_count() > 1;
  for (int host = 0; host < topology.host_count(); ++host) {
    if (across && topology.host(host).size() == 1) continue;
    connect(communicators, group, topology.host(host), &Communicators::intra, intra,
            options.intra.most, 2);
  }
  for (int team = 0; across && team < topology.teams(); ++team) {
    connect(communicators, group, topology.team(team), &Communicators::cross, cross,
            options.cross_bytes, kCrossInFlight);
  }
  if (topology.two_levels()) {
    std::vector<int> everyone(static_cast<size_t>(topology.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    connect(communicators, group, everyone, &Communicators::mesh, cross, options.cross_bytes,
            kCrossInFlight);
  }
  for (Communicators& mine : communicators) {
    if (wrap && mine.mesh) mine.mesh = wrap(std::move(mine.mesh), mine.rank, true);
    if (wrap && mine.intra) mine.intra = wrap(std::move(mine.intra), mine.rank, false);
    if (wrap && mine.cross) mine.cross = wrap(std::move(mine.cross), mine.rank, true);
    group.ranks.push_back(std::make_unique<Engine>(std::move(mine), options));
  }
  return group;
}

const std::vector<Hosts>& layouts() {
  static const std::vector<Hosts> all = {
      {"a"},           {"a", "a"},           {"a", "a", "a", "a", "a"},      {"a", "b", "c"},
      {"a", "a", "b"}, {"a", "b", "a", "b"}, {"a", "a", "b", "b", "b", "c"},
  };
  return all;
}

EngineOptions options_of(Reduction reduction, size_t intra_bytes, size_t segment_bytes,
                         size_t cross_bytes) {
  EngineOptions options;
  options.intra_reduction = options.cross_reduction = reduction;
  options.intra = {intra_bytes / 2, intra_bytes};
  options.segment_bytes = segment_bytes;
  options.cross_bytes = cross_bytes;
  return options;
}

}  // namespace cgx::native
