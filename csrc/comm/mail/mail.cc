#include "comm/mail/mail.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/error.h"
#include "base/threads.h"
#include "comm/futex.h"
#include "comm/process_token.h"

namespace cgx {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Longest sleep between two looks at the peers.
constexpr milliseconds kSlice{50};
constexpr int kLooksPerClock = 16;
// The thread looks so often whether it is needed, from kTick to kLongTick, and goes to sleep after
// so many looks at nothing.
constexpr milliseconds kTick{1}, kLongTick{8};
constexpr int kTicks = 50;
// A driver that has work leaves the lock to others for so long, at most.
constexpr microseconds kMakeWay{200};

// Longest spin. Of more ranks than cores: what they let others run for.
constexpr microseconds kSpin{100}, kCrowdedSpin{50};
nanoseconds mail_spin(int size) {
  const int cores = available_cores();
  return cores == 1 ? nanoseconds(0) : size <= cores ? kSpin : kCrowdedSpin;
}
// The thread drives beside threads that compute.
constexpr microseconds kBackgroundSpin{20};

}  // namespace

std::shared_ptr<Mail> Mail::make(std::unique_ptr<MailMemory> memory,
                                 MailDisagreement disagreement) {
  return std::shared_ptr<Mail>(new Mail(std::move(memory), std::move(disagreement)));
}

Mail::Mail(std::unique_ptr<MailMemory> memory, MailDisagreement disagreement)
    : memory_(std::move(memory)),
      process_(process_token()),
      crowded_(memory_->size() > available_cores()),
      spin_(mail_spin(memory_->size())),
      book_(*memory_, std::move(disagreement)) {}

Mail::~Mail() {
  if (process_ != process_token()) {
    (void)new std::thread(std::move(thread_));  // it stayed in the parent
    return;
  }
  close();
}

void Mail::check_process() const {
  if (process_ == process_token()) return;
  throw ConfigError(str_of("rank ", memory_->rank(),
                           ": this communicator belongs to the parent process; a forked child "
                           "cannot use it"));
}

Mail::Lock Mail::enter() {
  knocking_.fetch_add(1, std::memory_order_relaxed);
  Lock lock(mutex_);
  knocking_.fetch_sub(1, std::memory_order_relaxed);
  return lock;
}

void Mail::check_arguments(const MailTransfer& transfer) const {
  const bool sends = transfer.way == MailTransfer::Way::kSend;
  const char* what = sends ? "send" : "recv";
  if (transfer.tag < 0) {
    throw ConfigError(str_of(what, ": the tag is ", transfer.tag, "; allowed: 0 or more"));
  }
  if (!sends && transfer.peer == MailTransfer::kAnyRank) return;
  if (transfer.peer < 0 || transfer.peer >= memory_->size() || transfer.peer == memory_->rank()) {
    throw ConfigError(str_of(what, " on rank ", memory_->rank(), ": the peer is ", transfer.peer,
                             "; allowed: 0 to ", memory_->size() - 1, ", and not this rank"));
  }
}

void Mail::start_thread_once() {
  if (thread_.joinable()) return;
  thread_ = start_thread("the thread that moves messages", [self = shared_from_this()] {
    pthread_setname_np(pthread_self(), "cgx-mail");
    self->run();
  });
}

void Mail::post(const MailTransferPtr& transfer) {
  check_process();
  check_arguments(*transfer);
  Lock lock = enter();
  if (closed_) throw ConfigError(str_of("rank ", memory_->rank(), ": the mail is closed"));
  if (book_.broken()) throw_failure(*book_.broken());
  start_thread_once();
  ++generation_;
  book_.post(transfer);
  if (asleep_ && book_.pending() > 0) {
    asleep_ = false;
    work_.notify_one();
  }
  // It may have ended what the driver waits for.
  const auto& ended = book_.ended();
  if (driving_ && !ended.empty() && (ended.size() > 1 || ended.front() != transfer)) wake_driver();
  hand_out(lock);
}

void Mail::hand_out(Lock& lock) {
  auto& ended = book_.ended();
  if (ended.empty()) return;
  if (waiters_ > 1) changed_.notify_all();
  while (!ended.empty()) {
    MailTransferPtr transfer = std::move(ended.front());
    ended.pop_front();
    lock.unlock();
    transfer->ended();
    transfer.reset();
    lock.lock();
  }
}

// A mutex is not fair: a driver that takes it again at once would keep others out for as long as
// bytes move.
void Mail::make_way(Lock& lock) {
  if (knocking_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  const Deadline enough = Deadline::after(kMakeWay);
  while (knocking_.load(std::memory_order_relaxed) > 0 && !enough.expired()) sched_yield();
  lock.lock();
}

void Mail::wake_driver() {
  MailRank& me = memory_->state(memory_->rank());
  me.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(me.bell);
}

void Mail::wait(MailTransfer& transfer, const Deadline& deadline) {
  if (transfer.over()) return;
  check_process();
  Lock lock = enter();
  ++waiters_;
  ++generation_;
  while (!transfer.over()) {
    if (!driving_) {
      driving_ = true;
      drive(lock, &transfer, deadline);
      driving_ = false;
    } else {
      if (waiters_ == 1) wake_driver();  // the thread, which leaves the driving to this one
      changed_.wait_for(lock, std::min<nanoseconds>(deadline.left(), kSlice),
                        [&] { return transfer.over() || !driving_; });
    }
    if (transfer.over() || !deadline.expired()) continue;
    book_.fail(
        transfer.shared_from_this(),
        book_.failure_of_wait(FailureKind::kTimeout, transfer,
                              str_of("deadline passed (set ", deadline.elapsed_text(), " ago)")));
    wake_driver();
    hand_out(lock);
  }
  --waiters_;
  if (waiters_ > 0) changed_.notify_all();
  if (waiters_ == 0 && asleep_ && book_.pending() > 0) {
    asleep_ = false;
    work_.notify_one();
  }
}

void Mail::drive(Lock& lock, const MailTransfer* target, const Deadline& deadline) {
  const nanoseconds spin =
      target != nullptr ? spin_ : std::min<nanoseconds>(spin_, kBackgroundSpin);
  Clock::time_point idle_since{}, looked = Clock::now();
  note_core();
  for (int looks = 0, moves = 0;;) {
    const bool moved = book_.progress();
    hand_out(lock);
    if (target != nullptr ? target->over() : waiters_ > 0 || book_.pending() == 0) return;
    make_way(lock);
    if (moved) {
      looks = 0;
      if (++moves % kLooksPerClock != 0) continue;
      if (deadline.expired()) return;
      look_at_peers(looked);
      continue;
    }
    if (++looks % kLooksPerClock != 0) {
      lock.unlock();
      let_peers_run(crowded_);
      lock.lock();
      continue;
    }
    const auto now = Clock::now();
    if (looks == kLooksPerClock) idle_since = now;
    if (now - idle_since < spin) {
      if (crowded_ || !shares_core()) continue;
      if (own_core_.leave()) {
        note_core();
        continue;
      }
    }
    if (deadline.expired()) return;
    sleep(lock, deadline, looked);
    note_core();
    looks = 0;
  }
}

void Mail::note_core() {
  core_ = OwnCore::now();
  memory_->state(memory_->rank()).core.store(core_, std::memory_order_relaxed);
}

bool Mail::shares_core() const {
  for (int peer = 0; peer < memory_->size(); ++peer) {
    if (peer == memory_->rank()) continue;
    if (memory_->state(peer).core.load(std::memory_order_relaxed) == core_) return true;
  }
  return false;
}

void Mail::sleep(Lock& lock, const Deadline& deadline, Clock::time_point& looked) {
  MailRank& me = memory_->state(memory_->rank());
  const uint32_t bell = me.bell.load(std::memory_order_seq_cst);
  me.sleeps.store(1, std::memory_order_seq_cst);
  const auto now = Clock::now();
  const bool ask = now - looked >= kSlice / 2;
  if (ask) looked = now;
  // Before progress(): whatever the peer did before it left has been seen then.
  const auto loss = book_.loss(ask);
  if (!book_.progress() && !book_.broken()) {
    if (loss) {
      book_.fail(loss->first, loss->second);
    } else {
      lock.unlock();
      futex_wait(me.bell, bell, std::min<nanoseconds>(deadline.left(), kSlice));
      lock.lock();
    }
  }
  me.sleeps.store(0, std::memory_order_relaxed);
  end_late();
}

void Mail::look_at_peers(Clock::time_point& looked) {
  const auto now = Clock::now();
  if (now - looked < kSlice) return;
  looked = now;
  end_late();
  const auto loss = book_.loss(true);
  if (!loss) return;
  // What the peer has left in its ring comes first.
  for (size_t bytes = 0; bytes <= kMailRingBytes; bytes += kMailPiece) book_.progress();
  if (!loss->first->over()) book_.fail(loss->first, loss->second);
}

void Mail::end_late() {
  for (const auto& [transfer, deadline] : limits_) {
    if (transfer->over() || !deadline.expired()) continue;
    book_.fail(transfer, book_.failure_of_wait(
                             FailureKind::kTimeout, *transfer,
                             str_of("deadline passed (set ", deadline.elapsed_text(), " ago)")));
  }
  std::erase_if(limits_, [](const auto& limit) { return limit.first->over(); });
}

void Mail::poll() {
  if (process_ != process_token()) return;
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || driving_) return;
  book_.progress();
  hand_out(lock);
}

void Mail::limit(const MailTransferPtr& transfer, const Deadline& deadline) {
  const Lock lock = enter();
  if (!transfer->over()) limits_.emplace_back(transfer, deadline);
}

void Mail::abort(MailTransfer& transfer, const Failure& failure) {
  if (process_ != process_token()) return;
  Lock lock = enter();
  if (transfer.over()) return;
  book_.fail(transfer.shared_from_this(), failure);
  wake_driver();
  hand_out(lock);
}

void Mail::close() {
  if (process_ != process_token()) return;
  std::thread thread;
  {
    Lock lock = enter();
    if (closed_.exchange(true)) return;
    if (!book_.broken() || book_.pending() > 0) {
      book_.fail(nullptr, {FailureKind::kAborted,
                           "the process group was destroyed while this call was under way"});
    }
    wake_driver();
    work_.notify_all();
    hand_out(lock);
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) {
    // One of its own callbacks may close the group.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
  memory_->state(memory_->rank()).left.store(1, std::memory_order_seq_cst);
  for (int peer = 0; peer < memory_->size(); ++peer) {
    MailRank& state = memory_->state(peer);
    if (peer == memory_->rank()) continue;
    state.bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(state.bell);
  }
}

void Mail::run() {
  Lock lock(mutex_);
  uint64_t seen = 0;
  int ticks = 0;
  while (!closed_) {
    if (book_.pending() == 0 && ++ticks > kTicks) {
      asleep_ = true;
      work_.wait(lock, [this] { return closed_ || !asleep_; });
      asleep_ = false;
      ticks = 0;
    } else if (book_.pending() > 0 && waiters_ == 0 && !driving_ && generation_ == seen) {
      driving_ = true;
      drive(lock, nullptr, Deadline());
      driving_ = false;
      changed_.notify_all();
      ticks = 0;
    }
    // A caller that has just posted is about to wait, as a rule.
    seen = generation_;
    work_.wait_for(lock, waiters_ > 0 ? kLongTick : kTick, [this] { return closed_.load(); });
  }
}

}  // namespace cgx
