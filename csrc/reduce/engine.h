// The engine of one group: plans, reducers and statistics over its communicators.
//
// Thread-safety: plan_*(), abort() and stats() may be called from any thread, run() from one thread
// at a time.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "comm/communicator.h"
#include "reduce/engine_options.h"
#include "reduce/moves/move.h"
#include "reduce/plan/cache.h"
#include "reduce/plan/choose.h"
#include "reduce/plan/plan.h"
#include "reduce/plan/step_key.h"
#include "reduce/plan/topology.h"
#include "reduce/schedule/reducer.h"
#include "reduce/stats.h"

namespace cgx {

/// The communicators of one rank; see Links for which are there.
struct Communicators {
  Topology topology;
  int rank = 0;
  std::unique_ptr<Communicator> intra;
  std::unique_ptr<Communicator> cross;

  /// What watches over them; null where one is missing.
  std::array<Liveness*, 3> liveness() const { return {intra.get(), cross.get(), mesh.get()}; }
  /// Name in errors and statistics: "shm", "shm+gloo".
  std::string name;
  /// With two levels: over all ranks of the group, for moves between ranks of different hosts.
  std::unique_ptr<Communicator> mesh{};
};

/// Error feedback of a call (schedule/residual.h): a float32 or bfloat16 value for each value of the
/// input, read and written. Null: none.
struct Residual {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
};

/// Called with the failure that breaks a group, before the communicators pass it on to the peers;
/// returns it with what else is known of its cause.
using Explain = std::function<Failure(Failure)>;

class Engine {
 public:
  Engine(Communicators communicators, EngineOptions options, Explain explain = nullptr);
  ~Engine();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& communicator() const { return communicators_.name; }
  const Topology& topology() const { return communicators_.topology; }
  const EngineOptions& options() const { return options_; }

  /// Cached by content. ConfigError if a bucket does not fit into a message.
  std::shared_ptr<const Plan> plan_all_reduce(const std::vector<Layer>& layers, DType dtype,
                                              Combine combine = Combine::kSum) {
    return plans_.all_reduce(layers, dtype, combine);
  }
  std::shared_ptr<const Plan> plan_shards(Operation operation, size_t shard,
                                          const std::shared_ptr<const Codec>& codec, DType dtype,
                                          Combine combine = Combine::kSum) {
    return plans_.shards(operation, shard, codec, dtype, combine);
  }
  std::shared_ptr<const Plan> plan_reduce(size_t values, DType dtype, Combine combine, int root) {
    return plans_.reduce(values, dtype, combine, root);
  }

  /// Runs a plan on host memory; all ranks run equal plans in the same order.
  ///   all-reduce      input == output: plan.values values
  ///   reduce-scatter  input plan.values values, output one shard
  ///   all-gather      input one shard, output plan.values values
  ///   reduce          input plan.values values, output as many, which only the root writes
  /// average: divides the sum by the number of ranks: in float32 or float64 before it is rounded,
  /// integers towards zero.
  /// number: of the call, for errors; none: the engine's own count, from 1.
  /// overhead: gets the statistics instead of stats(); for exchanges of the autotuner, on behalf of
  /// the call with that number.
  /// residual: this rank's; the others may have none. It must not overlap the tensors. A failure may
  /// leave it partly written.
  /// key: of random numbers, equal on all ranks; none: the engine's count of calls.
  /// input_parts: of a reduce-scatter on the host whose input is not one behind the other: the
  /// address of each rank's shard. `input` is the own one then.
  /// Throws NonFiniteError (the group stays usable, output is complete) or another Error (every
  /// later run() throws the same). Their origin() is the cause without this call's title.
  void run(const Plan& plan, const void* input, void* output, bool average,
           const Deadline& deadline, std::optional<uint64_t> number = std::nullopt,
           Stats* overhead = nullptr, const Residual& residual = {},
           const std::optional<StepKey>& key = std::nullopt,
           const void* const* input_parts = nullptr);

  /// Runs a move on the memory of its pieces; all ranks run equal moves in the same order as plans.
  /// Other arguments and errors as of run().
  void run_move(const Move& move, const Deadline& deadline,
                std::optional<uint64_t> number = std::nullopt, const Residual& residual = {},
                const std::optional<StepKey>& key = std::nullopt);

  /// Breaks the group, here and where the communicators reach the peers. The first cause stays.
  void fail(const Failure& cause);
  void abort(const std::string& reason);

  /// Same as in Liveness, for all communicators at once; ranks are the group's.
  std::optional<PeerFingerprint> compare_call(const Fingerprint& fingerprint);
  void forget_call(uint64_t number);
  void finish_call(uint64_t number);
  void check_wait(std::chrono::steady_clock::time_point now);
  std::vector<int> ended_peers(uint64_t number);

  /// Peers whose end ended_peers() detects: none, the peers on this host, or all.
  enum class Sight : uint8_t { kNone, kSome, kAll };
  Sight sight_of_ends();

  /// Leaves the group: peers that still wait for this rank get an error at once. No run() may be
  /// under way or follow.
  void close();

  /// The cause if the group is broken, as far as it is known here. Never waits.
  std::optional<Failure> failure();
  /// A run() has failed and is finding out the cause: what failure() says may be a consequence of it.
  bool looks_for_cause();
  /// The same as failure() for errors of later calls: waits for the cause if a run() is just finding it out.
  std::optional<Failure> first_cause();

  /// Calls so far: the sequence number of the next one (key of stochastic rounding).
  uint64_t sequence() const { return sequence_; }
  /// For the simulator: makes the next call number `sequence`.
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }

  /// Of reductions, and of everything that is compressed.
  Stats& stats() { return stats_; }
  /// Of exact moves.
  Stats& moves() { return moves_; }
  Stats& stats_of(const Move& move) { return move.plan->compressed ? stats_ : moves_; }

  /// What encodes, sums and decodes, in place of HostStages without threads; before the first
  /// run(). ConfigError for stages of a GPU and communicators that do not carry its memory.
  void use(std::unique_ptr<Stages> stages);

 private:
  /// Only a single bucket is longer than the capacity of the communicators.
  void make_room(const Plan& plan);
  void dispatch(Call& call, const void* input, void* output);
  void dispatch(Call& call, const Move& move);
  /// The common part of run() and run_move(): `work` sends, receives and computes.
  struct RunOptions;
  template <typename Work>
  void carry_out(const Plan& plan, const RunOptions& options, const Work& work);
  View residual_view(const Plan& plan, const Residual& residual) const;
  void abort_communicators(const Failure& cause);
  /// Remembers the first cause, and returns it.
  Failure broken_by(const Failure& cause);
  /// Same as failure(), with the lock held.
  std::optional<Failure> known_failure();

  Communicators communicators_;  // its communicators are null after close()
  const Explain explain_;
  const EngineOptions options_;
  const int rank_;
  const int size_;
  PlanCache plans_;
  std::atomic<uint64_t> sequence_{0};
  WorkMemory work_;
  std::unique_ptr<Stages> stages_;
  Stats stats_, moves_;
  mutable std::mutex
      state_mutex_;  // guards broken_, and the communicators against abort() during close()
  std::optional<Failure> broken_;  // first cause
  std::atomic<bool> running_{false};
  std::atomic<bool> explaining_{false};  // and for good: the engine is broken then
  std::condition_variable explained_;    // a run() has set broken_
};

}  // namespace cgx
