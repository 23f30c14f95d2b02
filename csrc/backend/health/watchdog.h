// Watchdog of a process group: detects mismatches, dead peers and hangs, and spreads the first
// error.
//
// It counts the group's collectives, compares them with the peers' collectives, and turns every
// failure, of the engine or of the inner backend, into the first cause on all ranks. A failure is
// detected in one of three ways, from fast to slow:
// - at the call: ranks of one host compare their calls in shared memory, before anything is sent
//   (Liveness::compare_call);
// - while a call waits: communicators and the inner backend report failures; the watch adds peers
//   of this host that have ended, failures published in shared memory and, in a call without
//   progress, failures posted in the store: so a rank that waits for a live peer gets the cause
//   from the ranks that waited for the dead one;
// - after kStuckAfter: stuck ranks compare their calls through the store.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/health/call_patience.h"
#include "backend/health/connection_watch.h"
#include "backend/health/error_store.h"
#include "backend/health/watch.h"
#include "backend/work/call_record.h"
#include "comm/gloo/connections.h"
#include "reduce/engine.h"

namespace cgx {

class Watchdog final : public Watched {
 public:
  static constexpr std::chrono::seconds kStuckAfter{2};

  Watchdog(std::shared_ptr<const GroupLabel> label, StorePtr store);
  ~Watchdog() override;

  /// From here on the group is watched. Both must outlive detach(). `inner`: Gloo, or null where the
  /// group has none yet.
  void attach(Engine* engine, const std::shared_ptr<GlooConnections>& inner);
  /// Gloo where the group has made it later than its engine.
  void attach_inner(const std::shared_ptr<GlooConnections>& inner);
  /// A second engine of the group (for the tensors of a GPU), which fails with it.
  void attach_also(Engine* engine);
  /// A second inner backend, for the tensors of a GPU, which is aborted with the first.
  void attach_also(const BackendPtr& inner);
  void detach();
  /// This rank leaves with nothing under way: said before its connections close.
  void leave();
  /// The group is broken: waits for Gloo, which may be stuck, are to be given up.
  bool failed();
  /// No call is under way.
  bool idle();
  /// Waits until no collective is under way on the inner backend; false: the deadline has passed.
  bool collectives_end(const Deadline& deadline);

  /// A call begins. MismatchError, which breaks the group, if a peer is known to run another one.
  CallRecordPtr begin(const CallShape& shape, const Tensors& inputs, const Tensors& outputs,
                      std::chrono::milliseconds timeout);
  /// The call has not reached any peer (its arguments were refused).
  void withdraw(const CallRecordPtr& record);

  /// From here on this rank reports its recent calls to stuck ranks, also while it is not stuck
  /// itself: its calls may end before the peers have begun theirs (NCCL between hosts).
  void answer_always();
  /// The call has ended; `error` empty: well.
  void finish(CallRecord& record, const std::string& error);

  /// Collectives that were begun.
  uint64_t sequence() const;
  /// The name in errors of a call that begins now.
  CallTitle next(const char* operation) const;

  /// Breaks the group on all ranks that can be reached.
  void fail(const Failure& failure);

  /// Posts the engine's failure, unless another rank was faster; returns it with what that one has
  /// posted of its cause, or the cause itself.
  Failure explain(Failure failure);

  /// For works of the inner backend whose wait has thrown: throws the cause, as an exception for
  /// Python. `ended`: true if the call itself has failed, false if only this wait has.
  [[noreturn]] void rethrow(const CallRecord& record, const std::string& text, bool ended);

  /// A call cannot go on, whatever the peers do: breaks the group, unless it is broken already, and
  /// throws the first cause, as an exception for Python.
  [[noreturn]] void give_up(CallRecord& record, const Error& error);

  /// A message is not what its receiver expects: breaks the group and throws MismatchError with
  /// `text`, as an exception for Python.
  [[noreturn]] void disagree(CallRecord& record, const std::string& text);

  /// For calls that know how they have failed: breaks the group, and returns the first cause.
  Failure conclude(const CallRecord& record, Failure failure);
  /// RuntimeError in a forked child.
  void check_process(const CallRecord& record) const;

  void look() override;

 private:
  using Clock = std::chrono::steady_clock;
  /// Calls that a stuck rank reports: it may have passed the one that a peer is stuck in.
  static constexpr size_t kRecent = 16;

  /// "the process of rank 2 has ended", or empty. Processes that had done their part of the call do
  /// not count.
  std::string ended_peers_text(const CallRecord& call);
  std::vector<int> ended_peers(const CallRecord& call);
  Engine::Sight sight_of_ends();
  /// Why the group is broken, unless a call is finding it out.
  std::optional<Failure> known_cause();
  /// hesitate: the cause of the failure may be about to be posted by another rank.
  Failure explain(Failure failure, bool hesitate);

  Failure disagreement_of(const Fingerprint& mine, const PeerFingerprint& other) const;
  void abort_inner();
  /// One communicator knows of a failure: ends the waits over the others, too.
  void spread(const Failure& broken);
  /// True if a look into the store has found something, by which the group is broken now.
  bool act_on_finding();
  void compare_when_stuck(Clock::time_point now);
  /// Looks into the store if nothing has moved for a while.
  void listen_when_quiet(const CallRecord& oldest, Clock::time_point now);
  void answer_when_asked(Clock::time_point now);
  /// True if a connection that a call on Gloo needs has broken, by which the group is broken now.
  bool act_on_connections(std::vector<CallRecordPtr> calls, Clock::time_point now);
  /// Notes which calls of the inner backend have ended.
  void note_ended();
  std::vector<CallRecordPtr> under_way();

  const pid_t process_;
  const std::shared_ptr<const GroupLabel> label_;
  ErrorStore errors_;

  std::mutex attached_mutex_;  // guards these two; taken before mutex_
  Engine* engine_ = nullptr;
  Engine* second_ = nullptr;
  std::weak_ptr<GlooConnections> inner_;
  c10::weak_intrusive_ptr<c10d::Backend> second_inner_{BackendPtr()};

  mutable std::mutex mutex_;  // guards what follows
  uint64_t collectives_ = 0, point_to_point_ = 0;
  std::deque<CallRecordPtr> calls_;  // not known to be over
  std::deque<Fingerprint> recent_;
  bool answers_ = false;
  bool inner_aborted_ = false;

  // Used by the watch's thread only.
  bool broken_before_ = false;  // at the last look, too
  bool engines_failed_ = false;
  CallPatience patience_;
  ConnectionWatch connections_;
  Clock::time_point next_compare_{}, next_answer_{}, next_listen_{};
};

}  // namespace cgx
