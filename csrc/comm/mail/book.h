// All messages of a rank that are under way. One thread at a time; it never waits.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/mail/line.h"

namespace cgx {

class MailBook {
 public:
  using Clock = MailTransfer::Clock;

  MailBook(MailMemory& memory, MailDisagreement disagreement);

  /// Begins a transfer, and does at once what can be done. ResourceError as MailLine::send().
  void post(const MailTransferPtr& transfer);
  /// Moves what can be moved. False: nothing. A failure of any kind ends all transfers.
  bool progress();

  /// The first transfer that waits for a peer that has left or, where `ask`, whose process has
  /// ended, and the failure. If nothing moves afterwards, it is lost.
  using Loss = std::pair<MailTransferPtr, Failure>;
  std::optional<Loss> loss(bool ask);
  /// Ends `first` and then all others.
  void fail(const MailTransferPtr& first, const Failure& failure);
  /// The failure of a transfer whose wait is given up: "rank 0 waited 1.20 s for ...: `end`".
  Failure failure_of_wait(FailureKind kind, const MailTransfer& transfer,
                          const std::string& end) const;

  size_t pending() const { return desk_.pending; }
  /// Their ended() is to be called, in this order.
  std::deque<MailTransferPtr>& ended() { return desk_.ended; }
  /// Nothing moves any more.
  const std::optional<Failure>& broken() const { return broken_; }

 private:
  void begin(const MailTransferPtr& transfer);
  bool move();
  /// Runs `work`; its errors end all transfers.
  template <class Work>
  bool guarded(const Work& work);

  MailMemory& memory_;
  MailDesk desk_;
  std::vector<MailLine> lines_;  // by peer
  std::optional<Failure> broken_;
};

}  // namespace cgx
