#include "backend/gpu/plan_agreement.h"

#include <sstream>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

// A program whose layouts change with every call is trusted after so many.
constexpr size_t kMostAgreedPlans = 1024;
// Tensor numbers of one counter of steps have the same high half (torch_cgx/_steps.py).
constexpr int kCounterShift = 32;

}  // namespace

// Rank 0 compares for all ranks, so that every other rank waits for one key only. A rank that has
// used the plan before takes no part; ranks that wait for it in vain ask it through the watchdog
// (Watchdog::answer_always).
std::string PlanAgreement::compare(const Fingerprint& mine, const std::string& text,
                                   const Deadline& deadline) {
  auto rendezvous = rendezvous_over(store_at(group_, str_of("cuda-plan/", mine.number)), &host_);
  if (group_.rank != 0) {
    rendezvous->set(std::to_string(group_.rank), text);
    return rendezvous->get("verdict", deadline).substr(sizeof("is:") - 1);
  }
  std::string verdict;
  for (int r = 1; r < group_.size && verdict.empty(); ++r) {
    const std::string theirs = rendezvous->get(std::to_string(r), deadline);
    if (theirs == text) continue;
    Fingerprint fingerprint = mine;
    std::istringstream in(theirs);
    for (uint64_t& word : fingerprint.words) in >> word;
    verdict =
        disagreement(side_of(mine, 0), side_of(fingerprint, r), group_.logs(LogLevel::kDebug));
  }
  rendezvous->set("verdict", "is:" + verdict);
  return verdict;
}

bool PlanAgreement::jumps(const std::optional<StepKey>& key) {
  if (!key) return false;
  const auto [known, fresh] = steps_.try_emplace(key->tensor >> kCounterShift, key->step);
  const uint64_t last = std::exchange(known->second, key->step);
  return fresh || (key->step != last && key->step != last + 1);
}

void PlanAgreement::agree_across_hosts(const CallRecord& record, const Deadline& deadline) {
  const Fingerprint mine = record.fingerprint();
  std::string text;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t step = jumps(record.shape.key) ? mine.words[2] : 0;
    text = str_of(mine.words[0], " ", mine.words[1], " ", step, " ", record.shape.plan);
    if (agreed_.size() >= kMostAgreedPlans || !agreed_.insert(text).second) return;
  }
  Failure failure;
  try {
    const std::string verdict = compare(mine, text, deadline);
    if (verdict.empty()) return;
    failure = {FailureKind::kMismatch, verdict};
  } catch (const std::exception& e) {
    failure = failure_of(e);
  }
  if (failure.rank < 0) {
    failure.rank = group_.rank;
    failure.call = record.title().call;
  }
  failure = group_.watchdog->explain(std::move(failure));
  group_.watchdog->fail(failure);
  throw_failure(failure);
}

}  // namespace cgx
