#include "backend/health/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "backend/adapters/python_error.h"
#include "backend/work/flight_record.h"
#include "backend/work/works.h"
#include "base/deadline.h"
#include "base/error.h"

namespace cgx {
namespace {

using std::chrono::milliseconds;

// Longest wait for an answer of a store that may have died with a peer.
constexpr milliseconds kPatience{300};
// The same where ranks disagree: all of them live, and whoever sees the connections closed before
// the cause is posted takes this rank for dead.
constexpr milliseconds kPatienceOfTheLiving{2000};
// A lost connection is seldom the cause: a peer that has failed closes its connections. This is the
// time it may take to post the cause.
constexpr milliseconds kHesitation{150};
constexpr size_t kRecentToAnswer = 4096;  // of a rank that reports while it is not stuck

milliseconds patience_for(const Failure& failure) {
  return failure.kind == FailureKind::kMismatch ? kPatienceOfTheLiving : kPatience;
}

// Throws the failure to the caller of the collective.
[[noreturn]] void throw_to(const CallRecord& record, const Failure& failure) {
  std::rethrow_exception(for_python(failure, record.error_text(failure)));
}

}  // namespace

Watchdog::Watchdog(std::shared_ptr<const GroupLabel> label, StorePtr store)
    : process_(getpid()), label_(std::move(label)), errors_(std::move(store), label_->rank) {}

Watchdog::~Watchdog() = default;

void Watchdog::attach(Engine* engine, const std::shared_ptr<GlooConnections>& inner) {
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    engine_ = engine;
    inner_ = inner;
  }
  Watch::add(this);
}

void Watchdog::attach_inner(const std::shared_ptr<GlooConnections>& inner) {
  std::lock_guard<std::mutex> lock(attached_mutex_);
  if (engine_ != nullptr) inner_ = inner;
}

void Watchdog::attach_also(Engine* engine) {
  std::lock_guard<std::mutex> lock(attached_mutex_);
  second_ = engine;
}

void Watchdog::attach_also(const BackendPtr& inner) {
  std::lock_guard<std::mutex> lock(attached_mutex_);
  second_inner_ = c10::weak_intrusive_ptr<c10d::Backend>(inner);
}

void Watchdog::leave() { errors_.leave(kPatience); }

bool Watchdog::failed() {
  std::lock_guard<std::mutex> lock(attached_mutex_);
  return engine_ == nullptr || engine_->failure();
}

void Watchdog::answer_always() {
  std::lock_guard<std::mutex> lock(mutex_);
  answers_ = true;
}

void Watchdog::detach() {
  Watch::remove(this);
  // Finishes works that were never waited for: their records must not keep the inner backend.
  for (const CallRecordPtr& call : under_way()) {
    const auto work = call->work();
    const bool done = !work || (work->isCompleted() && succeeded(*work));
    finish(*call, done ? "" : "the group was destroyed while this call was under way");
  }
  std::lock_guard<std::mutex> lock(attached_mutex_);
  engine_ = second_ = nullptr;
  inner_.reset();
  second_inner_.reset();
}

CallRecordPtr Watchdog::begin(const CallShape& shape, const Tensors& inputs, const Tensors& outputs,
                              milliseconds timeout) {
  auto record = std::make_shared<CallRecord>();
  record->group = label_;
  record->shape = shape;
  record->timeout = timeout;
  record->created = Clock::now();
  FlightRecord& flight = FlightRecord::instance();
  if (flight.enabled()) {
    record->created_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count();
    record->shapes = TensorShapes(inputs, outputs);
  }
  const bool collective = !shape.point_to_point();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    record->number = collective ? ++collectives_ : ++point_to_point_;
    while (!calls_.empty() && calls_.front()->over()) calls_.pop_front();
    calls_.push_back(record);
    if (collective) {
      recent_.push_back(record->fingerprint());
      if (recent_.size() > (answers_ ? kRecentToAnswer : kRecent)) recent_.pop_front();
    }
  }
  if (flight.enabled()) flight.add(record);
  if (!collective) return record;
  std::optional<PeerFingerprint> other;
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    if (engine_ != nullptr) other = engine_->compare_call(record->fingerprint());
  }
  if (!other) return record;
  const Failure failure = disagreement_of(record->fingerprint(), *other);
  record->finish(record->error_text(failure));
  fail(failure);
  throw_to(*record, failure);
}

Failure Watchdog::disagreement_of(const Fingerprint& mine, const PeerFingerprint& other) const {
  return {FailureKind::kMismatch,
          disagreement(side_of(mine, label_->rank), side_of(other.fingerprint, other.rank),
                       label_->tell_hashes),
          label_->rank, name_of(mine)};
}

void Watchdog::withdraw(const CallRecordPtr& record) {
  record->finish("refused before anything was sent");
  if (record->shape.point_to_point()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Peers never see it; the next call gets its number.
    if (record->number == collectives_) --collectives_;
    if (!recent_.empty() && recent_.back().number == record->number) recent_.pop_back();
  }
  std::lock_guard<std::mutex> lock(attached_mutex_);
  if (engine_ != nullptr) engine_->forget_call(record->number);
}

void Watchdog::finish(CallRecord& record, const std::string& error) {
  record.finish(error);
  if (!error.empty() || record.shape.point_to_point()) return;
  std::lock_guard<std::mutex> lock(attached_mutex_);
  if (engine_ != nullptr) engine_->finish_call(record.number);
}

std::vector<int> Watchdog::ended_peers(const CallRecord& call) {
  std::lock_guard<std::mutex> lock(attached_mutex_);
  if (engine_ == nullptr) return {};
  return engine_->ended_peers(call.shape.point_to_point() ? 0 : call.number);
}

uint64_t Watchdog::sequence() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return collectives_;
}

CallTitle Watchdog::next(const char* operation) const {
  CallTitle title{{operation}, label_->shown(), label_->rank, label_->size};
  std::lock_guard<std::mutex> lock(mutex_);
  title.call.number = 1 + (point_to_point(title.call) ? point_to_point_ : collectives_);
  return title;
}

void Watchdog::fail(const Failure& failure) {
  if (process_ != getpid()) return;  // a forked child must not act for its parent
  // Before the connections are closed: a rank that sees a closed connection looks for the cause.
  errors_.post(failure, patience_for(failure));
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    for (Engine* engine : {engine_, second_}) {
      if (engine != nullptr) engine->fail(failure);
    }
  }
  abort_inner();
}

Engine::Sight Watchdog::sight_of_ends() {
  std::lock_guard<std::mutex> lock(attached_mutex_);
  Engine::Sight least = engine_ != nullptr ? engine_->sight_of_ends() : Engine::Sight::kNone;
  if (second_ != nullptr) least = std::min(least, second_->sight_of_ends());
  return least;
}

std::optional<Failure> Watchdog::known_cause() {
  std::lock_guard<std::mutex> lock(attached_mutex_);
  if (engine_ == nullptr || engine_->looks_for_cause()) return std::nullopt;
  return engine_->failure();
}

Failure Watchdog::explain(Failure failure) {
  // Some communicators see that a process has ended; the others only see a lost connection.
  const bool symptom = failure.kind == FailureKind::kPeerLost;
  return explain(std::move(failure), symptom && sight_of_ends() != Engine::Sight::kAll);
}

Failure Watchdog::explain(Failure failure, bool hesitate) {
  const std::optional<ErrorStore::Posted> first =
      errors_.post(failure, patience_for(failure), hesitate ? kHesitation : milliseconds(0));
  if (!first || first->rank == label_->rank) return failure;
  // The failure holds a peer's cause already, or names both sides of a mismatch.
  if (failure.rank != label_->rank || failure.kind == FailureKind::kMismatch) return failure;
  const Failure& cause = first->failure;
  // Both ranks have waited for the same peer, each until its own deadline.
  if (failure.kind == FailureKind::kTimeout && cause.kind == failure.kind) return failure;
  // A lost connection is only a consequence of the failure that another rank has posted.
  if (failure.kind == FailureKind::kAborted || failure.kind == FailureKind::kPeerLost) return cause;
  if (failure.text.find(cause.text) != std::string::npos) return failure;
  failure.text += str_of("; rank ", cause.rank, " had failed before: ", cause.text);
  return failure;
}

// The kernel ends a process step by step: it may close its connections before it frees its locks.
std::string Watchdog::ended_peers_text(const CallRecord& call) {
  std::vector<int> ended;
  const int attempts = sight_of_ends() == Engine::Sight::kNone ? 0 : 5;
  for (int attempt = 0; attempt < attempts && ended.empty(); ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(milliseconds(40));
    ended = ended_peers(call);
  }
  std::string text;
  for (int peer : ended) text += str_of(text.empty() ? "" : ", ", peer);
  if (text.empty()) return text;
  return str_of(ended.size() == 1 ? "the process of rank " : "the processes of ranks ", text,
                ended.size() == 1 ? " has ended" : " have ended");
}

void Watchdog::rethrow(const CallRecord& record, const std::string& text, bool ended) {
  check_process(record);
  const bool late =
      text.find("imed out") != std::string::npos || text.find("imeout") != std::string::npos;
  const std::optional<Failure> known = known_cause();
  if (known) throw_to(record, *known);
  Failure failure{late ? FailureKind::kTimeout : FailureKind::kPeerLost, text, label_->rank,
                  record.title().call};
  if (!ended) {
    failure.kind = FailureKind::kTimeout;
    failure.text += " The collective goes on: wait(timeout=...) has set this limit.";
    throw_to(record, failure);
  }
  const std::string lost = ended_peers_text(record);
  if (!lost.empty()) {
    failure.kind = FailureKind::kPeerLost;
    failure.text += "; " + lost;
  }
  failure = explain(std::move(failure), lost.empty() && failure.kind == FailureKind::kPeerLost);
  fail(failure);
  throw_to(record, failure);
}

void Watchdog::give_up(CallRecord& record, const Error& error) {
  const std::optional<Failure> known = known_cause();
  Failure failure = known ? *known : failure_of(error);
  if (failure.rank < 0) failure.rank = label_->rank;
  if (!known) {
    failure.call = record.title().call;
    failure = explain(std::move(failure));
    fail(failure);
  }
  finish(record, record.error_text(failure));
  throw_to(record, failure);
}

void Watchdog::check_process(const CallRecord& record) const {
  TORCH_CHECK(process_ == getpid(), "cgx: ", record.title().text(),
              ": the work belongs to the parent of this process; a forked child cannot use it");
}

Failure Watchdog::conclude(const CallRecord& record, Failure failure) {
  if (auto known = known_cause()) return *known;
  failure.rank = label_->rank;
  failure.call = record.title().call;
  if (failure.kind != FailureKind::kMismatch) failure = explain(std::move(failure));
  fail(failure);
  return failure;
}

void Watchdog::disagree(CallRecord& record, const std::string& text) {
  const Failure failure{FailureKind::kMismatch, text, label_->rank, record.title().call};
  finish(record, record.error_text(failure));
  fail(failure);
  throw_to(record, failure);
}

std::vector<CallRecordPtr> Watchdog::under_way() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(calls_, [](const CallRecordPtr& call) { return call->over(); });
  return {calls_.begin(), calls_.end()};
}

void Watchdog::abort_inner() {
  std::shared_ptr<GlooConnections> inner;
  BackendPtr second;
  {
    std::lock_guard<std::mutex> lock(attached_mutex_);
    inner = inner_.lock();
    second = second_inner_.lock();
    second_inner_.reset();  // once is enough
  }
  if (second) try {
      second->abort();
    } catch (const std::exception&) {
      // It has failed already: its own watchdog ends its waits.
    }
  if (!inner) return;
  bool waiting = false;
  for (const CallRecordPtr& call : under_way()) {
    if (call->shape.engine) continue;
    waiting = true;
    try {
      if (auto work = call->work()) work->abort();
    } catch (const std::exception&) {
      // Gloo's collectives cannot be aborted, only lose their connections.
    }
  }
  // Once for the peers, and again at every look while a thread of this process still waits.
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(inner_aborted_, true) && !waiting) return;
  }
  inner->close();
}

void Watchdog::note_ended() {
  for (const CallRecordPtr& call : under_way()) {
    // A call that has not started has no work yet: a large input may be copied first.
    if (call->shape.engine || call->state() == CallRecord::State::kScheduled) continue;
    // Gloo's sends and receives learn only in wait() that they are over.
    const auto work = call->work();
    if (!work || (!call->shape.point_to_point() && work->isCompleted())) {
      finish(*call, work && !succeeded(*work) ? "failed" : "");
    }
  }
}

bool Watchdog::idle() {
  note_ended();
  return under_way().empty();
}

bool Watchdog::collectives_end(const Deadline& deadline) {
  for (;; std::this_thread::sleep_for(milliseconds(5))) {
    note_ended();
    const auto calls = under_way();
    if (std::all_of(calls.begin(), calls.end(),
                    [](const auto& call) { return call->shape.point_to_point(); })) {
      return true;
    }
    if (deadline.expired()) return false;
  }
}

}  // namespace cgx
