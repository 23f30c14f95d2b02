// What the watch's thread does for a group, ten times a second.
#include <algorithm>
#include <utility>

#include "backend/health/watchdog.h"

namespace cgx {
namespace {

using std::chrono::milliseconds;

// A call without progress for kListenAfter looks into the store for a cause, then again every
// kListenAfter, or every size * kListenShare if that is longer: large groups must not overload it.
constexpr milliseconds kListenAfter{200};
constexpr std::chrono::microseconds kListenShare{200};
constexpr std::chrono::seconds kCompareAgain{5};
constexpr std::chrono::seconds kAnswerAgain{2};

}  // namespace

void Watchdog::look() {
  note_ended();
  const std::vector<CallRecordPtr> calls = under_way();
  if (calls.empty()) {
    patience_.rest();
    connections_.rest();
    return answer_when_asked(Clock::now());
  }
  std::optional<Failure> broken;
  uint64_t moved = 0;
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    if (engine_ == nullptr) return;
    broken = engine_->failure();
    for (Engine* engine : {engine_, second_}) {
      if (engine == nullptr) continue;
      for (const Stats* stats : {&engine->stats(), &engine->moves()}) {
        moved += stats->bytes_sent + stats->bytes_received;
      }
    }
  }
  if (broken) return spread(*broken);
  const auto now = Clock::now();
  if (act_on_connections(calls, now)) return;
  patience_.look(now, moved);
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    for (Engine* engine : {engine_, second_}) {
      if (engine != nullptr) engine->check_wait(now);
    }
  }
  bool listens = false;
  for (const CallRecordPtr& call : calls) {
    if (call->shape.point_to_point()) continue;
    if (patience_.exhausted(now, !ended_peers(*call).empty(), call->shape.engine)) {
      return fail(
          {FailureKind::kPeerLost, ended_peers_text(*call), label_->rank, call->title().call});
    }
    if (act_on_finding()) return;
    listen_when_quiet(*call, now);
    listens = true;
    break;  // of the oldest collective: later ones may not have begun
  }
  // Nobody but the store says that the group has failed elsewhere to a rank that waits for a message
  // over Gloo of a rank that lives.
  if (!listens && !calls.front()->shape.engine) {
    if (act_on_finding()) return;
    listen_when_quiet(*calls.front(), now);
  }
  compare_when_stuck(now);
}

void Watchdog::spread(const Failure& broken) {
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    // A call that sees its connection closed still has to learn why, from the store: until then this
    // failure is a consequence, and nobody else may take it for the cause. The next look comes after
    // its error has reached the engine.
    if (!std::exchange(broken_before_, true)) return;
    for (Engine* engine : {engine_, second_}) {
      if (engine != nullptr && engine->looks_for_cause()) return;
    }
    if (!std::exchange(engines_failed_, true)) {
      for (Engine* engine : {engine_, second_}) {
        if (engine != nullptr) engine->fail(broken);
      }
    }
  }
  abort_inner();
}

bool Watchdog::act_on_connections(std::vector<CallRecordPtr> calls, Clock::time_point now) {
  std::shared_ptr<GlooConnections> inner;
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    inner = inner_.lock();
  }
  if (!inner) return false;
  if (sight_of_ends() == Engine::Sight::kAll) {
    // ended_peers() knows more: whether a process that has ended had done its part.
    std::erase_if(calls, [](const auto& call) { return !call->shape.point_to_point(); });
  }
  const auto lost = connections_.look(
      calls, label_->rank, label_->size, [&](int peer) { return inner->broken(peer); }, now);
  if (lost) {
    fail({FailureKind::kPeerLost,
          str_of("the connection to rank ", lost->peer, " has broken: ", lost->why), label_->rank,
          lost->call->title().call});
    return true;
  }
  const std::vector<int> peers = connections_.in_question();
  if (peers.empty()) return false;
  if (act_on_finding()) return true;
  errors_.listen(peers);
  return false;
}

void Watchdog::listen_when_quiet(const CallRecord& oldest, Clock::time_point now) {
  if (now < next_listen_ || now - oldest.created < kListenAfter) return;
  if (!patience_.quiet(now, kListenAfter)) return;
  const auto pause = std::max<Clock::duration>(kListenAfter, label_->size * kListenShare);
  if (errors_.listen()) next_listen_ = now + pause;
}

bool Watchdog::act_on_finding() {
  const auto finding = errors_.finding();
  if (!finding) return false;
  for (int peer : finding->left) connections_.left(peer);
  if (finding->failure && finding->failure->rank != label_->rank) {
    fail(finding->failure->failure);
    return true;
  }
  if (!finding->other) return false;
  fail(disagreement_of(finding->mine, *finding->other));
  return true;
}

void Watchdog::answer_when_asked(Clock::time_point now) {
  std::vector<Fingerprint> fingerprints;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!answers_ || now < next_answer_) return;
    fingerprints.assign(recent_.begin(), recent_.end());
  }
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    if (engine_ == nullptr || engine_->failure()) return;
  }
  if (act_on_finding()) return;
  if (errors_.answer(std::move(fingerprints))) next_answer_ = now + kAnswerAgain;
}

void Watchdog::compare_when_stuck(Clock::time_point now) {
  if (act_on_finding()) return;
  uint64_t stuck = 0;
  bool asks = false;
  std::vector<Fingerprint> fingerprints;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asks = answers_;
    for (const CallRecordPtr& call : calls_) {
      if (call->over() || call->shape.point_to_point()) continue;
      if (now - call->created < kStuckAfter) break;
      stuck = call->number;
      break;
    }
    if (stuck != 0 && now < next_compare_) return;
    for (const Fingerprint& fingerprint : recent_) {
      if (fingerprint.number <= stuck) fingerprints.push_back(fingerprint);
    }
    if (fingerprints.size() > kRecent)
      fingerprints.erase(fingerprints.begin(), fingerprints.end() - kRecent);
  }
  if (stuck == 0) {  // a receive may be under way for long, and says nothing of the collectives
    next_compare_ = {};
    return answer_when_asked(now);
  }
  if (errors_.compare(std::move(fingerprints), asks ? stuck : 0))
    next_compare_ = now + kCompareAgain;
}

}  // namespace cgx
