// Messages between the ranks of a group that share memory: matched by tag, of any size, independent
// of the group's collectives.
//
// Messages of one pair of ranks with one tag keep their order. A receive takes the first message
// that fits its peer and tag; of several receives, the one that was posted first gets it. A message
// of up to kMailAtOnce bytes is copied into the ring of its pair at once, so that its send is over,
// and waits there for its receive; a longer one flows through the ring when it has been matched.
//
// Who moves the bytes: one thread at a time, the driver. A thread that waits is the driver, or
// sleeps until the driver has ended its transfer or leaves. While no thread waits, one of this
// object's own drives. A driver spins for a moment, and then sleeps until a peer rings.
//
// Every wait ends: at its deadline, at the end of a peer that it waits for, and with the failure of
// the group. A failure ends all transfers; later ones are refused.
//
// Thread-safe. A forked child must not use it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "comm/mail/book.h"
#include "comm/mail/memory.h"
#include "comm/mail/transfer.h"
#include "comm/own_core.h"

namespace cgx {

class Mail : public std::enable_shared_from_this<Mail> {
 public:
  static std::shared_ptr<Mail> make(std::unique_ptr<MailMemory> memory,
                                    MailDisagreement disagreement);
  ~Mail();
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  /// Begins a transfer. ConfigError: peer or tag, or a forked child; ResourceError: no memory or no
  /// thread; the failure of the group. In these cases nothing has begun.
  void post(const MailTransferPtr& transfer);

  /// Returns when the transfer is over. At the deadline it ends it, and all others, with a
  /// TimeoutError.
  void wait(MailTransfer& transfer, const Deadline& deadline);
  /// Moves what can be moved now, unless another thread does so.
  void poll();
  /// The transfer, which nobody may wait for, ends at the deadline as in wait().
  void limit(const MailTransferPtr& transfer, const Deadline& deadline);
  /// Ends it, and all others, with the failure.
  void abort(MailTransfer& transfer, const Failure& failure);

  /// Ends all transfers; peers see that this rank has left.
  void close();
  bool closed() const { return closed_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = Deadline::Clock;

  Mail(std::unique_ptr<MailMemory> memory, MailDisagreement disagreement);

  void check_process() const;
  Lock enter();
  void check_arguments(const MailTransfer& transfer) const;
  void start_thread_once();

  /// Until `target` is over or the deadline has passed; null: until a thread waits, or nothing is
  /// left to do.
  void drive(Lock& lock, const MailTransfer* target, const Deadline& deadline);
  void sleep(Lock& lock, const Deadline& deadline, Clock::time_point& looked);
  void note_core();
  bool shares_core() const;
  /// While bytes move.
  void look_at_peers(Clock::time_point& looked);
  void hand_out(Lock& lock);
  void make_way(Lock& lock);
  void wake_driver();
  void end_late();
  void run();

  const std::unique_ptr<MailMemory> memory_;
  const uint64_t process_;
  const bool crowded_;
  const std::chrono::nanoseconds spin_;
  std::atomic<int> knocking_{0};  // threads that want the lock
  std::atomic<bool> closed_{false};

  std::mutex mutex_;  // guards what follows
  MailBook book_;
  std::vector<std::pair<MailTransferPtr, Deadline>> limits_;
  int waiters_ = 0;
  bool driving_ = false;
  int32_t core_ = 0;  // that of the driver
  OwnCore own_core_;
  bool asleep_ = false;              // the thread has nothing to do, and must be woken
  uint64_t generation_ = 0;          // of calls
  std::condition_variable changed_;  // a transfer is over, or the driver leaves
  std::condition_variable work_;     // for the thread
  std::thread thread_;
};

}  // namespace cgx
