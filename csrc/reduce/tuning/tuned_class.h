// The decision for one class of messages, all of about the same size and kind: raced for first,
// then watched.
//
//     turn = tuned.next();               // the decision for this call
//     ... the call; where turn.timed(): tuned.record(turn.sample, when it began and ended) ...
//     if (tuned.due()) tuned.renew(...); // the group's seconds of the recorded calls, by sample
//
// The race: all decisions take turns, call by call, for kRaceCalls calls at most. After 2, 4, 8, 16
// turns ranks exchange what they have measured, and a decision that is far behind drops out, the
// less far the more turns there were. The fastest one is settled for.
//
// The watch: every other decision, its rival, is tried for a call from time to time, and the call
// after it, of the decision settled for, is timed, too: both are the first of their kind after a
// change. A rival that wins such pairs takes over. The nearer a rival is, the more often it is
// tried: near ones above all soon after the race, slow ones so seldom that all of their trials cost
// 1 / kCallsPerLoss of the time. Where one that was far behind wins, all race again.
//
// A time is the mean of the shortest third: other work on the machine makes calls longer, never
// shorter. Ties are decided as in fastest().
//
// The results of next() and due() depend on the number of calls and on exchanged times, never on
// this rank's clock: they are the same on all ranks. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/tuning/decision.h"
#include "reduce/tuning/shared_clock.h"

namespace cgx {

class TunedClass {
 public:
  static constexpr uint64_t kRaceCalls = 48;
  /// Calls between two trials of a rival that takes twice as long: the share of time lost.
  static constexpr double kCallsPerLoss = 200;
  /// Between two trials of any rival, at least; more each time that it loses, and at most.
  static constexpr uint64_t kLeastPause = 20, kMostPause = 20000;
  /// The same of near rivals that have not been tried often, as after the race.
  static constexpr double kFirstCallsPerLoss = 100;
  static constexpr uint64_t kFirstPause = 5;

  struct Turn {
    Decision decision = Decision::kAsked;
    int sample = -1;
    bool timed() const { return sample >= 0; }
  };

  explicit TunedClass(const Available& available);

  /// Counts a call.
  Turn next();
  void record(int sample, const Span& span);

  /// True once all ranks have run the timed calls; next() may not be called before renew().
  bool due() const { return due_; }
  /// This rank's, since the last renew(), by sample; empty where record() was not called.
  const std::vector<Span>& spans() const { return spans_; }
  /// The group's seconds by sample; 0: unknown, as if the call had not been timed.
  void renew(const std::vector<double>& seconds);

  /// The current decision of the class, or the one that would be made now; kAsked while nothing is
  /// measured.
  Decision decision() const { return decision_; }
  /// Seconds of the latest trials by decision; negative: never tried.
  const Seconds& measured() const { return measured_; }
  uint64_t calls() const { return calls_; }
  uint64_t renewals() const { return renewals_; }

 private:
  struct TrialPair {
    double rival, settled;
  };
  /// A decision other than the current one.
  struct Rival {
    Decision decision;
    double ratio = 1;              // of its time to the settled decision's time
    std::vector<TrialPair> pairs;  // the latest that it was judged by
    std::vector<TrialPair> fresh;  // since then
    size_t trials = 0;             // since then; more than pairs where calls have failed
    uint64_t next_trial = 0;       // number of the call
    uint64_t patience = 1;         // factor of the least pause
  };

  double seconds_of(Decision decision) const { return measured_[static_cast<size_t>(decision)]; }
  void start_race();
  void judge_race(const std::vector<double>& seconds);
  void settle(Decision decision);
  void judge_rivals(const std::vector<double>& seconds);
  /// True if that was the end of the watch, and of the rival.
  bool judge(Rival& rival);
  /// True if this time beats the time of the current decision.
  bool wins(Decision rival, double its, double own) const;
  void pause(Rival& rival);
  /// True if a rival is near, and has been tried too seldom to be sure that it loses.
  static bool unsure(const Rival& rival);
  Turn timed(Decision decision);
  static size_t pairs_wanted(const Rival& rival);

  const Available available_;
  Seconds measured_;
  Decision decision_ = Decision::kAsked;

  bool racing_ = true, due_ = false;
  std::vector<Span> spans_;
  std::vector<Decision> taken_;  // by sample

  std::vector<Decision> racers_;
  std::array<std::vector<double>, kDecisions> laps_;  // by decision and turn; 0: not known
  size_t lap_ = 0, place_ = 0;                        // of the next call
  uint64_t race_calls_ = 0;

  std::vector<Rival> rivals_;
  bool echo_ = false;  // the next call follows a trial

  uint64_t calls_ = 0;
  uint64_t renewals_ = 0;
};

}  // namespace cgx
