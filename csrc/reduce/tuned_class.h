// The choice for one class of messages, those of about the same size and kind: predicted first,
// then tried, then looked at again from time to time.
//
//     turn = tuned.next();             // which choice this call takes
//     ... the call; where turn.sampled, its seconds: tuned.record(turn.choice, seconds) ...
//     if (tuned.due()) tuned.renew(what all ranks report());
//
// Choices whose estimates lie within kContested of the best are tried in turns, a few calls each;
// then the ranks exchange their medians, the slowest rank's replace the estimates, and those
// that have come within reach are tried in their turn. A class that has settled is tried again
// after kCallsPerTrial calls for each that was on trial. So what next() and due() say depends on
// the number of calls and on what was exchanged, never on this rank's clock: it is the same on all
// ranks. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/cost_model.h"

namespace cgx {

class TunedClass {
 public:
  /// Of each choice on trial: more where a call is short, and noise a larger part of it.
  static constexpr size_t kSamples = 3, kMoreSamples = 5, kMostSamples = 9;
  static constexpr double kShortSeconds = 20e-3, kShortestSeconds = 1e-3;
  /// Settled calls for every one on trial: trials cost a call's time at most, so a percent of all.
  static constexpr uint64_t kCallsPerTrial = 100;
  static constexpr double kContested = 2;

  struct Turn {
    Choice choice = Choice::kAsked;
    bool sampled = false;
  };

  /// Predicted seconds; negative: not to be had.
  explicit TunedClass(const Estimates& predicted);

  /// Counts a call.
  Turn next();
  void record(Choice choice, double seconds);

  /// True once all ranks have run all that was to be tried.
  bool due() const;
  /// Medians of this rank since the last renew(), in seconds; 0: none.
  std::array<float, kChoices> report() const;
  /// What the slowest rank reports; 0 where any rank has none, which leaves the estimate as it is.
  void renew(const std::array<float, kChoices>& slowest);

  /// What the class has settled for, or would now.
  Choice choice() const { return choice_; }
  const Estimates& predicted() const { return predicted_; }
  /// Of the last trial of each; negative: never tried.
  const Estimates& measured() const { return measured_; }
  uint64_t calls() const { return calls_; }
  uint64_t renewals() const { return renewals_; }

 private:
  Estimates estimates() const;
  size_t samples() const { return samples_each_ * trials_.size(); }
  /// Those worth a trial, but for those that have had theirs in this round.
  void plan_trials();

  const Estimates predicted_;
  Estimates measured_;
  Choice choice_;
  std::vector<Choice> trials_;  // what is tried now
  size_t turn_ = 0;             // of samples()
  size_t samples_each_ = kSamples;
  std::array<bool, kChoices> tried_{};
  std::array<std::vector<float>, kChoices> samples_;
  uint64_t calls_ = 0;
  uint64_t next_check_ = 0;
  uint64_t renewals_ = 0;
};

}  // namespace cgx
