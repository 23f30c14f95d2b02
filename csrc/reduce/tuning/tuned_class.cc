#include "reduce/tuning/tuned_class.h"

#include <algorithm>

namespace cgx {
namespace {

// The race: a decision that is slower than the fastest by this factor after this many turns drops
// out. One sample may be off by any factor, so nothing drops out after the first turn.
struct Hurdle {
  size_t laps;
  double factor;
};
constexpr Hurdle kHurdles[] = {{2, 3}, {4, 1.8}, {8, 1.35}, {16, 1.15}};

// The watch.
constexpr double kNear = 1.5, kFar = 4;
constexpr size_t kManyPairs = 8, kFewPairs = 4, kMostPairs = 32;  // the latest ones
constexpr uint64_t kMostPatience = 16;
// Before a near rival has lost so many pairs, noise may have done it, or a slow second in which all
// of the race took place: until then it is tried and judged often.
constexpr size_t kSurePairs = 32;
// Pairs that differ from earlier pairs by this factor show that the machine or the link has
// changed.
constexpr double kChanged = 1.5;

// Mean of the shortest third; negative without any. Of long calls that share a machine with others,
// more than half may be slow.
double typical(std::vector<double> seconds) {
  std::erase_if(seconds, [](double one) { return one <= 0; });
  if (seconds.empty()) return -1;
  std::sort(seconds.begin(), seconds.end());
  const size_t count = (seconds.size() + 2) / 3;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += seconds[i];
  return sum / static_cast<double>(count);
}

}  // namespace

TunedClass::TunedClass(const Available& available) : available_(available) {
  measured_.fill(-1);
  start_race();
}

void TunedClass::start_race() {
  racing_ = true;
  echo_ = false;
  lap_ = place_ = 0;
  race_calls_ = 0;
  racers_.clear();
  rivals_.clear();
  for (auto& laps : laps_) laps.clear();
  for (Decision decision : kAllDecisions) {
    if (available_[static_cast<size_t>(decision)]) racers_.push_back(decision);
  }
}

TunedClass::Turn TunedClass::timed(Decision decision) {
  spans_.emplace_back();
  taken_.push_back(decision);
  return {decision, static_cast<int>(spans_.size()) - 1};
}

TunedClass::Turn TunedClass::next() {
  ++calls_;
  if (racing_) {
    if (racers_.empty()) return {decision_};
    // Another one goes first in every lap: none always follows the same one, and links save up
    // while they are idle and pay back later.
    const Decision decision = racers_[(lap_ + place_) % racers_.size()];
    ++race_calls_;
    if (++place_ == racers_.size()) {
      place_ = 0;
      ++lap_;
      const bool hurdle = std::any_of(std::begin(kHurdles), std::end(kHurdles),
                                      [this](const Hurdle& one) { return one.laps == lap_; });
      due_ = hurdle || race_calls_ + racers_.size() > kRaceCalls;
    }
    return timed(decision);
  }
  if (echo_) {
    echo_ = false;
    due_ = std::any_of(rivals_.begin(), rivals_.end(),
                       [](const Rival& one) { return one.trials >= pairs_wanted(one); });
    return timed(decision_);
  }
  for (Rival& rival : rivals_) {
    if (calls_ < rival.next_trial) continue;
    echo_ = true;
    ++rival.trials;
    pause(rival);
    return timed(rival.decision);
  }
  return {decision_};
}

void TunedClass::record(int sample, const Span& span) {
  spans_.at(static_cast<size_t>(sample)) = span;
}

void TunedClass::renew(const std::vector<double>& seconds) {
  ++renewals_;
  due_ = false;
  if (racing_) {
    judge_race(seconds);
  } else {
    judge_rivals(seconds);
  }
  spans_.clear();
  taken_.clear();
}

void TunedClass::judge_race(const std::vector<double>& seconds) {
  for (size_t i = 0; i < taken_.size(); ++i) {
    laps_[static_cast<size_t>(taken_[i])].push_back(seconds[i]);
  }
  Seconds now;
  double least = -1;
  now.fill(-1);
  for (Decision decision : racers_) {
    const auto i = static_cast<size_t>(decision);
    now[i] = typical(laps_[i]);
    if (now[i] < 0) now[i] = measured_[i];
    if (now[i] >= 0 && (least < 0 || now[i] < least)) least = now[i];
  }
  double factor = 1;
  for (const Hurdle& one : kHurdles) {
    if (one.laps <= lap_) factor = one.factor;
  }
  std::vector<Decision> left;
  for (Decision decision : racers_) {
    const double one = now[static_cast<size_t>(decision)];
    if (one <= factor * least || one < 0) left.push_back(decision);
  }
  const bool over = left.size() == 1 || race_calls_ + left.size() > kRaceCalls;
  Seconds in_race;
  in_race.fill(-1);
  for (Decision decision : left) {
    in_race[static_cast<size_t>(decision)] = now[static_cast<size_t>(decision)];
  }
  decision_ = fastest(in_race);
  racers_ = std::move(left);
  if (!over) return;
  for (size_t i = 0; i < kDecisions; ++i) {
    const double one = typical(laps_[i]);
    if (one >= 0) measured_[i] = one;
  }
  settle(decision_);
}

void TunedClass::settle(Decision decision) {
  // The times of the new decision's rivals come from the race, or from the watch that ends.
  std::vector<Rival> rivals;
  for (Decision other : kAllDecisions) {
    if (other == decision || !available_[static_cast<size_t>(other)]) continue;
    Rival rival;
    rival.decision = other;
    if (racing_) {
      const auto& own = laps_[static_cast<size_t>(decision)];
      const auto& its = laps_[static_cast<size_t>(other)];
      for (size_t lap = 0; lap < std::min(own.size(), its.size()); ++lap) {
        if (own[lap] > 0 && its[lap] > 0) rival.pairs.push_back({its[lap], own[lap]});
      }
    } else if (other == decision_) {
      for (const Rival& one : rivals_) {
        if (one.decision != decision) continue;
        for (const TrialPair& pair : one.pairs) rival.pairs.push_back({pair.settled, pair.rival});
      }
    }
    const double own = seconds_of(decision), its = seconds_of(other);
    rival.ratio = own > 0 && its > 0 ? its / own : 1;
    pause(rival);
    rivals.push_back(std::move(rival));
  }
  decision_ = decision;
  rivals_ = std::move(rivals);
  racing_ = echo_ = false;
  racers_.clear();
  for (auto& laps : laps_) laps.clear();
}

bool TunedClass::unsure(const Rival& rival) {
  return rival.ratio <= kNear && rival.pairs.size() < kSurePairs;
}

void TunedClass::pause(Rival& rival) {
  const bool soon = unsure(rival);
  const auto least = static_cast<double>(soon ? kFirstPause : kLeastPause * rival.patience);
  const double calls = std::clamp((soon ? kFirstCallsPerLoss : kCallsPerLoss) * (rival.ratio - 1),
                                  least, static_cast<double>(kMostPause));
  rival.next_trial = calls_ + static_cast<uint64_t>(calls);
}

size_t TunedClass::pairs_wanted(const Rival& rival) {
  if (rival.ratio > kFar) return 1;
  return rival.ratio > kNear || unsure(rival) ? kFewPairs : kManyPairs;
}

void TunedClass::judge_rivals(const std::vector<double>& seconds) {
  // A trial, and then the call of the decision settled for.
  for (size_t i = 0; i + 1 < taken_.size(); i += 2) {
    if (seconds[i] <= 0 || seconds[i + 1] <= 0) continue;
    for (Rival& rival : rivals_) {
      if (rival.decision == taken_[i]) rival.fresh.push_back({seconds[i], seconds[i + 1]});
    }
  }
  // One that is a trial behind needs no exchange of its own.
  for (Rival& rival : rivals_) {
    if (rival.trials + 1 >= pairs_wanted(rival) && judge(rival)) return;
  }
}

bool TunedClass::judge(Rival& rival) {
  const auto ratio_of = [](const std::vector<TrialPair>& pairs, double& its, double& own) {
    std::vector<double> rivals, settled;
    for (const TrialPair& pair : pairs) {
      rivals.push_back(pair.rival);
      settled.push_back(pair.settled);
    }
    its = typical(std::move(rivals));
    own = typical(std::move(settled));
    return own > 0 ? its / own : 1;
  };
  const std::vector<TrialPair> fresh = std::move(rival.fresh);
  rival.fresh.clear();
  rival.trials = 0;
  if (fresh.empty()) return false;
  double its_now = 0, own_now = 0, its = 0, own = 0;
  const double now = ratio_of(fresh, its_now, own_now);
  const bool far = rival.ratio > kNear;
  // All of the few pairs of an uncertain rival may be disturbed.
  const bool changed =
      !unsure(rival) && (now > kChanged * rival.ratio || kChanged * now < rival.ratio);
  if (changed) rival.pairs.clear();
  rival.pairs.insert(rival.pairs.end(), fresh.begin(), fresh.end());
  if (rival.pairs.size() > kMostPairs) {
    rival.pairs.erase(rival.pairs.begin(), rival.pairs.end() - kMostPairs);
  }
  rival.ratio = ratio_of(rival.pairs, its, own);
  measured_[static_cast<size_t>(rival.decision)] = its;
  measured_[static_cast<size_t>(decision_)] = own;
  if (wins(rival.decision, its, own)) {
    // The time of the third decision may be as outdated as this decision's time was.
    if (far) {
      start_race();
    } else {
      settle(rival.decision);
    }
    return true;
  }
  // While the latest pairs contradict the decision, the rival is tried as often as before.
  if (changed) {
    rival.patience = 1;
  } else if (rival.pairs.size() >= kSurePairs && !wins(rival.decision, its_now, own_now)) {
    rival.patience = std::min(2 * rival.patience, kMostPatience);
  }
  pause(rival);
  return false;
}

bool TunedClass::wins(Decision rival, double its, double own) const {
  Seconds both;
  both.fill(-1);
  both[static_cast<size_t>(rival)] = its;
  both[static_cast<size_t>(decision_)] = own;
  return fastest(both) == rival;
}

}  // namespace cgx
