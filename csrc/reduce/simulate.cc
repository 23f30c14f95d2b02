#include "reduce/simulate.h"

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/in_process.h"

namespace cgx {
namespace {

using Body = std::function<void(Engine&, size_t rank, const Deadline&)>;

// Ranks are threads of one process, so a minute without progress is a defect, not a slow network;
// big tensors on 64 threads still need their time.
constexpr auto kTimeout = std::chrono::minutes(30);

std::vector<StatsSnapshot> run_ranks(size_t size, EngineOptions options, uint64_t sequence,
                                     size_t slot_bytes, const Body& body) {
  auto comms = make_in_process_group(static_cast<int>(size), slot_bytes);
  std::vector<std::unique_ptr<Engine>> engines;
  for (auto& comm : comms) {
    engines.push_back(std::make_unique<Engine>(std::move(comm), options));
    engines.back()->set_sequence(sequence);
  }
  std::mutex mutex;
  std::exception_ptr first;  // the first to fail has the cause, the others only hear of it
  const Deadline deadline = Deadline::after(kTimeout);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*engines[rank], rank, deadline);
      } catch (...) {
        {
          std::lock_guard<std::mutex> lock(mutex);
          if (!first) first = std::current_exception();
        }
        engines[rank]->abort("another simulated rank failed");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  std::vector<StatsSnapshot> stats;
  for (auto& engine : engines) stats.push_back(engine->stats().snapshot());
  return stats;
}

}  // namespace

SimulationResult simulate_all_reduce(const std::vector<void*>& data, DType dtype,
                                     const std::vector<Segment>& segments, bool average,
                                     EngineOptions options, uint64_t sequence, size_t slot_bytes) {
  SimulationResult result;
  result.algorithm = choose_algorithm(options.reduction, one_shot_payload_bytes(segments, dtype),
                                      static_cast<int>(data.size()));
  result.stats = run_ranks(data.size(), options, sequence, slot_bytes,
                           [&](Engine& engine, size_t rank, const Deadline& deadline) {
                             auto plan = engine.plan_all_reduce(segments, dtype);
                             engine.run(*plan, data[rank], data[rank], average, deadline);
                           });
  return result;
}

SimulationResult simulate_shards(Operation operation, const std::vector<const void*>& inputs,
                                 const std::vector<void*>& outputs, DType dtype, size_t shard,
                                 const std::shared_ptr<const Codec>& codec, bool average,
                                 EngineOptions options, uint64_t sequence, size_t slot_bytes) {
  SimulationResult result;
  result.algorithm = Algorithm::kScatterReduceAllGather;
  result.stats = run_ranks(inputs.size(), options, sequence, slot_bytes,
                           [&](Engine& engine, size_t rank, const Deadline& deadline) {
                             auto plan = engine.plan_shards(operation, shard, codec, dtype);
                             engine.run(*plan, inputs[rank], outputs[rank], average, deadline);
                           });
  return result;
}

}  // namespace cgx
