// The autotuner: chooses for each call the fastest of exact, 16 bits and the asked bits, on this
// group's link with these CPUs. Never fewer bits than asked.
//
// Ordinary calls are timed, and decisions follow from the number of calls and the exchanged times
// (tuned_class.h). The ranks exchange times over the engine, exactly and as fp32, within the
// deadline of a call that all of them make: a dead or late peer is the same error as in any call,
// every rank computes the same decision from the same bits, and a group that never compresses pays
// nothing. A time is the group's, without the wait for a late rank (shared_clock.h). Everything
// runs on the thread that drives the engine, where calls have the same order on all ranks, however
// far ahead their callers are.
//
// There is no model of the link: one that was fitted to probes saved a few of the first 48 calls of a
// class at most, and the race came to the same decisions without it (docs/performance.md,
// "Autotuned groups").
//
// Thread-safety: decide() and ran() on the thread that drives the engine; report() and the counters
// from any.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "reduce/engine.h"
#include "reduce/tuning/decision.h"
#include "reduce/tuning/rank_numbers.h"
#include "reduce/tuning/tuned_class.h"

namespace cgx {

/// Measurements and decisions of an autotuner for a class of messages.
struct TuningRow {
  Operation operation;
  DType dtype;
  size_t bytes;  // of the first message of the class, exact
  std::string codec;
  Seconds measured;
  Decision decision;
  uint64_t calls, renewals;
};

class Autotuner {
 public:
  using Log = std::function<void(const std::string&)>;

  /// half: the codec of 16 bits per value; null: the tuner does not offer it. log: may be null.
  Autotuner(Engine& engine, std::shared_ptr<const Codec> half, Log log);

  struct TunedPlan {
    std::shared_ptr<const Plan> plan;
    TunedClass::Turn turn;
    /// Used by ran(); null: no decision.
    TunedClass* tuned_class = nullptr;
  };

  /// The plan to run instead of `asked`. Collective if anything is measured or exchanged: all ranks
  /// call it for the same calls in the same order, each directly before it runs the plan. Throws as
  /// Engine::run(); `number` is the number of the call.
  TunedPlan decide(const std::shared_ptr<const Plan>& asked, const Deadline& deadline,
                   uint64_t number);
  /// The time stamp for the span that ran() takes.
  static int64_t now();
  /// The plan has run, in this time. Not to be called for a plan that has failed.
  void ran(const TunedPlan& tuned, const Span& span);

  /// "autotune: asked, measured exact 1.2 ms, 16 bits 0.9 ms, asked 0.8 ms", for logs.
  std::string why(const TunedPlan& tuned) const;

  std::vector<TuningRow> report() const;
  /// Calls by decision, and bytes and seconds that measuring took, since the last reset.
  std::array<uint64_t, kDecisions> calls() const;
  const Stats& overhead() const { return overhead_; }
  double seconds() const;
  void reset_counters();

 private:
  using Clock = std::chrono::steady_clock;
  /// operation, dtype, sizes exact and as asked in quarters of octaves, codec.
  using ClassKey = std::tuple<Operation, DType, int, int, std::string>;
  using Plans = std::array<std::shared_ptr<const Plan>, kDecisions>;
  struct Known {
    std::shared_ptr<const Plan> asked;  // keeps the key of the map alive
    Plans plans;
    TunedClass* tuned = nullptr;
  };
  struct Class {
    TunedClass tuned;
    size_t bytes;
    std::string codec;
  };

  TunedPlan choose(const std::shared_ptr<const Plan>& asked, const Deadline& deadline,
                   uint64_t number);
  Known& known(const std::shared_ptr<const Plan>& asked);
  Plans plans_for(const std::shared_ptr<const Plan>& asked);
  std::shared_ptr<const Plan> plan_as(const Plan& asked, const std::shared_ptr<const Codec>& codec);
  std::shared_ptr<const Codec> codec_of(const Plan& plan) const;

  /// Exchanges the recorded times of the class.
  void renew(TunedClass& tuned, const Deadline& deadline, uint64_t number);
  /// Brings clocks together.
  void meet(const Deadline& deadline, uint64_t number);

  Engine& engine_;
  const std::shared_ptr<const Codec> half_;
  const Log log_;
  Stats overhead_;
  RankNumbers ranks_;
  std::atomic<int64_t> tuning_ns_{0};
  std::array<std::atomic<uint64_t>, kDecisions> calls_{};

  // Written only by the driving thread, under the lock; it reads them without the lock.
  mutable std::mutex mutex_;
  std::map<ClassKey, Class> classes_;
  std::unordered_map<const Plan*, Known> known_;
  SharedClock clock_;
};

}  // namespace cgx
