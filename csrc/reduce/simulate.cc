#include "reduce/simulate.h"

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "comm/in_process.h"
#include "reduce/schedule/two_levels.h"

namespace cgx {
namespace {

using Body = std::function<void(Engine&, size_t rank, const Deadline&)>;

// Ranks are threads of one process, so a minute without progress is a defect, not a slow network;
// big tensors on 64 threads still need their time.
constexpr auto kTimeout = std::chrono::minutes(30);

// Gives the communicators of a new in-process group to the ranks that are its members.
void connect(std::vector<Communicators>& communicators, const std::vector<int>& ranks,
             std::unique_ptr<Communicator> Communicators::* link, size_t bytes, int slots) {
  auto comms = make_in_process_group(static_cast<int>(ranks.size()), bytes, slots);
  for (size_t i = 0; i < ranks.size(); ++i) {
    communicators[static_cast<size_t>(ranks[i])].*link = std::move(comms[i]);
  }
}

std::vector<Communicators> make_communicators(const Topology& topology,
                                              const EngineOptions& options) {
  std::vector<Communicators> communicators;
  for (int rank = 0; rank < topology.size(); ++rank) {
    communicators.push_back({topology, rank, nullptr, nullptr, "in-process"});
  }
  const bool across = topology.host_count() > 1;
  for (int host = 0; host < topology.host_count(); ++host) {
    if (across && topology.host(host).size() == 1) continue;
    connect(communicators, topology.host(host), &Communicators::intra, options.intra.most, 2);
  }
  for (int team = 0; across && team < topology.teams(); ++team) {
    connect(communicators, topology.team(team), &Communicators::cross, options.cross_bytes,
            kCrossInFlight);
  }
  return communicators;
}

std::vector<StatsSnapshot> run_ranks(const SimulatedGroup& group, size_t size, const Body& body) {
  if (size != static_cast<size_t>(group.topology.size())) {
    throw ConfigError(
        str_of(size, " tensors for a group of ", group.topology.size(), " ranks; one per rank"));
  }
  std::vector<std::unique_ptr<Engine>> engines;
  for (Communicators& communicators : make_communicators(group.topology, group.options)) {
    engines.push_back(std::make_unique<Engine>(std::move(communicators), group.options));
    engines.back()->set_sequence(group.sequence);
  }
  std::mutex mutex;
  std::exception_ptr first;  // the first to fail has the cause, the others fail because of it
  const Deadline deadline = Deadline::after(kTimeout);
  const auto fail = [&](const std::exception_ptr& error) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!first) first = error;
    }
    for (auto& engine : engines) engine->abort("another simulated rank failed");
  };
  std::vector<std::thread> threads;
  try {
    for (size_t rank = 0; rank < size; ++rank) {
      threads.push_back(start_thread(str_of("the thread of simulated rank ", rank), [&, rank] {
        try {
          body(*engines[rank], rank, deadline);
        } catch (...) {
          fail(std::current_exception());
        }
      }));
    }
  } catch (...) {  // the ranks that run would wait for those that do not
    fail(std::current_exception());
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  std::vector<StatsSnapshot> stats;
  for (auto& engine : engines) stats.push_back(engine->stats().snapshot());
  return stats;
}

}  // namespace

SimulationResult simulate_all_reduce(const SimulatedGroup& group, const std::vector<void*>& data,
                                     DType dtype, const std::vector<Layer>& layers, bool average,
                                     const std::vector<Residual>& residuals) {
  if (!residuals.empty() && residuals.size() != data.size()) {
    throw ConfigError(str_of(residuals.size(), " residuals for ", data.size(), " ranks"));
  }
  SimulationResult result;
  result.stats =
      run_ranks(group, data.size(), [&](Engine& engine, size_t rank, const Deadline& deadline) {
        auto plan = engine.plan_all_reduce(layers, dtype);
        if (rank == 0) result.algorithm = plan->algorithm;
        engine.run(*plan, data[rank], data[rank], average, deadline, std::nullopt, nullptr,
                   residuals.empty() ? Residual{} : residuals[rank], group.key);
      });
  return result;
}

SimulationResult simulate_shards(const SimulatedGroup& group, Operation operation,
                                 const std::vector<const void*>& inputs,
                                 const std::vector<void*>& outputs, DType dtype, size_t shard,
                                 const std::shared_ptr<const Codec>& codec, bool average) {
  SimulationResult result;
  result.algorithm = Algorithm::kScatterReduceAllGather;
  result.stats =
      run_ranks(group, inputs.size(), [&](Engine& engine, size_t rank, const Deadline& deadline) {
        auto plan = engine.plan_shards(operation, shard, codec, dtype);
        engine.run(*plan, inputs[rank], outputs[rank], average, deadline, std::nullopt, nullptr, {},
                   group.key);
      });
  return result;
}

}  // namespace cgx
