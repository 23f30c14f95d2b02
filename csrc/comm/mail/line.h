// The messages between this rank and one peer, in both directions. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mail/matching.h"
#include "comm/mail/memory.h"
#include "comm/mail/ring.h"
#include "comm/mail/transfer.h"

namespace cgx {

/// The text of a disagreement: `receive`, and what `source` has sent for it.
using MailDisagreement =
    std::function<std::string(int source, const MailShape& sent, const MailTransfer& receive)>;

/// What the lines of a rank have in common.
struct MailDesk {
  MailMemory& memory;
  Matching matching;
  MailDisagreement disagreement;
  std::deque<MailTransferPtr> ended;  // whose ended() is to be called
  size_t pending = 0;                 // transfers that are not over
  /// A failure that breaks all transfers, and the one that met it.
  std::optional<Failure> broken{};
  MailTransferPtr broken_by{};

  void end(const MailTransferPtr& transfer, std::optional<Failure> failure = std::nullopt);
  /// Wakes `peer` if it sleeps.
  void ring(int peer) const;
};

class MailLine {
 public:
  /// `desk` outlives it.
  MailLine(MailDesk& desk, int peer) : desk_(desk), peer_(peer) {}

  /// push() sends it. ResourceError: there is no memory for the ring, and nothing is kept.
  void send(const MailTransferPtr& transfer);
  /// Sends what there is room for, one piece of a long message at most. True if anything was sent.
  bool push();

  /// Receives what has come, about 128 KiB at most. Messages that nobody expects stay in the ring,
  /// unless something behind them is expected. True if anything was read.
  bool pull();
  /// A receive takes a message that was kept.
  void take(const MailTransferPtr& receive, Matching::Kept message);

  /// Has transfers that are not over; receives that await their message are in Matching.
  bool sends() const { return !waiting_.empty() || !announced_.empty() || !streaming_.empty(); }
  bool receives() const { return !granted_.empty() || !ungranted_.empty(); }
  /// The first of them.
  MailTransferPtr first() const;
  void clear(std::vector<MailTransferPtr>& all);

 private:
  struct Numbered {
    uint64_t id;
    MailTransferPtr transfer;
  };

  bool wanted() const { return receives() || desk_.matching.expecting(peer_) > 0; }
  bool take_grants();
  bool introduce();
  bool send_piece();
  /// False: it stays in the ring.
  bool receive(const MailPacket& packet);
  void receive_piece(const MailPacket& packet);
  /// Compares; false: they disagree, which breaks everything.
  bool fits(const MailTransferPtr& receive, const MailPacket& packet);
  void accept(uint64_t id, const MailTransferPtr& receive);
  [[noreturn]] void damaged(const std::string& what) const;

  MailDesk& desk_;
  const int peer_;

  std::optional<RingWriter> writer_;
  uint64_t last_id_ = 0;
  bool piece_next_ = false;             // pieces and other packets take turns
  std::deque<MailTransferPtr> waiting_;  // in the order in which the receiver shall see them
  std::deque<Numbered> announced_;
  std::deque<Numbered> streaming_;

  std::optional<RingReader> reader_;
  std::deque<Numbered> granted_;    // its pieces come in this order
  std::deque<Numbered> ungranted_;  // matched
};

}  // namespace cgx
