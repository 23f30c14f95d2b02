#include "reduce/tuned_class.h"

#include <algorithm>

namespace cgx {

TunedClass::TunedClass(const Estimates& predicted)
    : predicted_(predicted), choice_(fastest(predicted)) {
  measured_.fill(-1);
  plan_trials();
}

Estimates TunedClass::estimates() const {
  Estimates seconds = predicted_;
  for (size_t i = 0; i < kChoices; ++i) {
    if (seconds[i] >= 0 && measured_[i] >= 0) seconds[i] = measured_[i];
  }
  return seconds;
}

void TunedClass::plan_trials() {
  const Estimates seconds = estimates();
  choice_ = fastest(seconds);
  double least = -1;
  for (double one : seconds) {
    if (one >= 0 && (least < 0 || one < least)) least = one;
  }
  samples_each_ = least < kShortestSeconds ? kMostSamples
                  : least < kShortSeconds  ? kMoreSamples
                                           : kSamples;
  trials_.clear();
  turn_ = 0;
  for (Choice choice : kAllChoices) {
    const auto i = static_cast<size_t>(choice);
    if (seconds[i] >= 0 && seconds[i] <= kContested * least && !tried_[i])
      trials_.push_back(choice);
    samples_[i].clear();
  }
}

TunedClass::Turn TunedClass::next() {
  ++calls_;
  if (trials_.empty() && calls_ > next_check_) {
    tried_.fill(false);
    plan_trials();
  }
  if (trials_.empty()) return {choice_, false};
  // Another one goes first in every round: links save up while they are idle, and pay back later.
  const size_t round = turn_ / trials_.size(), place = turn_ % trials_.size();
  ++turn_;
  return {trials_[(round + place) % trials_.size()], true};
}

void TunedClass::record(Choice choice, double seconds) {
  samples_[static_cast<size_t>(choice)].push_back(static_cast<float>(seconds));
}

bool TunedClass::due() const { return !trials_.empty() && turn_ == samples(); }

std::array<float, kChoices> TunedClass::report() const {
  std::array<float, kChoices> medians{};
  for (size_t i = 0; i < kChoices; ++i) {
    std::vector<float> sorted = samples_[i];
    if (sorted.empty()) continue;
    std::sort(sorted.begin(), sorted.end());
    medians[i] = sorted[sorted.size() / 2];
  }
  return medians;
}

void TunedClass::renew(const std::array<float, kChoices>& slowest) {
  ++renewals_;
  for (Choice choice : trials_) {
    const auto i = static_cast<size_t>(choice);
    if (slowest[i] > 0) measured_[i] = slowest[i];
    tried_[i] = true;
  }
  plan_trials();
  if (!trials_.empty()) return;
  const auto tried = static_cast<uint64_t>(std::count(tried_.begin(), tried_.end(), true));
  next_check_ = calls_ + kCallsPerTrial * tried * samples_each_;
}

}  // namespace cgx
