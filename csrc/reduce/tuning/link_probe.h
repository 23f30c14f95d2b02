// Measures the link of a group: times small and large all-reduces, exact and compressed.
//
// Every probe counts kSamples times at least. A sample is the time of the slowest rank, and the
// least sample is the result: other work on a machine makes a sample longer, never shorter, once a
// rank that began late, and so waited less than the others, does not count alone. So the result
// stays the same if all but one of the samples are disturbed, where a median would not.
//
// Contract: collective, as RankNumbers; results are equal to the bit on all ranks.
// Errors: what Engine::run() raises.
// Thread-safety: on the thread that drives the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "codec/codec.h"
#include "reduce/engine.h"
#include "reduce/tuning/cost_model.h"
#include "reduce/tuning/rank_numbers.h"

namespace cgx {

/// Calls `run`, which runs the plan once on this rank, and returns the seconds that it took.
using Stopwatch = std::function<double(const Plan& plan, const std::function<void()>& run)>;
double wall_seconds(const Plan& plan, const std::function<void()>& run);

class LinkProbe {
 public:
  static constexpr int kSamples = 3;

  /// stopwatch: another one than the wall clock is for tests.
  LinkProbe(Engine& engine, Stats& overhead, Stopwatch stopwatch = wall_seconds);

  /// Probes grow while the next one is expected to take 30 ms at most: some 200 ms for all of them,
  /// on any link whose latency allows.
  LinkProbes measure(const std::shared_ptr<const Codec>& asked, const Deadline& deadline,
                     uint64_t number);

  /// An all-reduce of so many values of fp32. A message of several buckets may be too long for the
  /// slots, even if the caller's message, cut from one bucket, fits.
  std::shared_ptr<const Plan> plan_of(size_t values, const std::shared_ptr<const Codec>& codec);
  bool fits(size_t values, const std::shared_ptr<const Codec>& codec);

 private:
  /// Seconds of the plan: the least of `samples`.
  double least_of(const Plan& plan, int samples, const Deadline& deadline, uint64_t number);
  /// Runs the plan once on all ranks, which begin together.
  double run(const Plan& plan, const Deadline& deadline, uint64_t number);

  Engine& engine_;
  Stats& overhead_;
  RankNumbers ranks_;
  const Stopwatch stopwatch_;
  std::vector<float> buffer_;
};

}  // namespace cgx
