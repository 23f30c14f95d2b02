#include "groups.h"

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "check.h"
#include "comm/in_process.h"
#include "comm/relay.h"
#include "comm/shm.h"
#include "reduce/two_levels.h"

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
void connect(std::vector<Carriers>& carriers, EngineGroup& group, const std::vector<int>& members,
             std::unique_ptr<Communicator> Carriers::* link, Carrier kind, size_t bytes,
             int slots) {
  Group made = make_group(kind, static_cast<int>(members.size()), bytes, slots);
  if (made.network) group.networks.push_back(made.network);
  for (size_t i = 0; i < members.size(); ++i) {
    made.ranks[i]->call_ranks(members);
    carriers[static_cast<size_t>(members[i])].*link = std::move(made.ranks[i]);
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

Group make_group(Carrier carrier, int size, size_t capacity, int slots) {
  Group group;
  switch (carrier) {
    case Carrier::kInProcess:
      group.ranks = make_in_process_group(size, capacity, slots);
      break;
    case Carrier::kShm: {
      group.ranks.resize(static_cast<size_t>(size));
      auto rendezvous = local_rendezvous();
      run_ranks(size, [&](int rank) {
        group.ranks[static_cast<size_t>(rank)] =
            make_shm_communicator(*rendezvous, rank, size, capacity, patience());
      });
      break;
    }
    case Carrier::kRelay:
    case Carrier::kLazyRelay:
      group.network = std::make_shared<MockNetwork>(size);
      group.network->set_lazy(carrier == Carrier::kLazyRelay);
      for (int rank = 0; rank < size; ++rank) {
        group.ranks.push_back(make_relay_communicator(group.network->endpoint(rank), capacity));
      }
      break;
  }
  return group;
}

EngineGroup make_engines(const std::vector<std::string>& hosts, EngineOptions options,
                         Carrier inner, Carrier cross) {
  const Topology topology(hosts);
  EngineGroup group;
  std::vector<Carriers> carriers;
  for (int rank = 0; rank < topology.size(); ++rank) {
    carriers.push_back({topology, rank, nullptr, nullptr, "native test"});
  }
  const bool across = topology.host_count() > 1;
  for (int host = 0; host < topology.host_count(); ++host) {
    if (across && topology.host(host).size() == 1) continue;
    connect(carriers, group, topology.host(host), &Carriers::inner, inner, options.inner.most, 2);
  }
  for (int team = 0; across && team < topology.teams(); ++team) {
    connect(carriers, group, topology.team(team), &Carriers::cross, cross, options.cross_bytes,
            kCrossInFlight);
  }
  for (Carriers& mine : carriers) {
    group.ranks.push_back(std::make_unique<Engine>(std::move(mine), options));
  }
  return group;
}

EngineOptions options_of(Reduction reduction, size_t inner_bytes, size_t segment_bytes,
                         size_t cross_bytes) {
  EngineOptions options;
  options.inner_reduction = options.cross_reduction = reduction;
  options.inner = {inner_bytes / 2, inner_bytes};
  options.segment_bytes = segment_bytes;
  options.cross_bytes = cross_bytes;
  return options;
}

}  // namespace cgx::native
