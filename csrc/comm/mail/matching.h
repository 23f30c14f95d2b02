// Which receive takes which message: per tag, receives in the order in which they were posted, and
// messages in the order in which they came. One thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "comm/mail/memory.h"
#include "comm/mail/transfer.h"

namespace cgx {

class Matching {
 public:
  /// A message that came before its receive. `payload`: of a message that goes at once.
  struct Kept {
    int source;
    MailPacket packet;
    std::unique_ptr<std::byte[]> payload;
  };

  explicit Matching(int size) : from_(static_cast<size_t>(size)) {}

  void add(const MailTransferPtr& receive);
  /// The receive that a message belongs to, which is taken out; null: none was posted yet.
  MailTransferPtr take(int source, int tag);

  void keep(Kept message);
  /// The message that belongs to a receive.
  std::optional<Kept> take_kept(const MailTransfer& receive);

  /// Receives that a message of `source` may belong to.
  size_t expecting(int source) const { return from_any_ + from_[static_cast<size_t>(source)]; }
  size_t expecting_only(int source) const { return from_[static_cast<size_t>(source)]; }
  size_t expecting_any() const { return from_any_; }
  /// The first receive from `source` (kAnyRank: those from any rank); null if there is none.
  MailTransferPtr first(int source) const;
  std::vector<MailTransferPtr> clear();

 private:
  struct Queues {
    std::deque<MailTransferPtr> posted;
    std::deque<Kept> kept;
  };
  size_t& count_of(int peer) {
    return peer == MailTransfer::kAnyRank ? from_any_ : from_[static_cast<size_t>(peer)];
  }
  /// Tags that are no longer used take memory until they are many.
  void tidy();

  std::unordered_map<int, Queues> tags_;
  size_t many_tags_ = 256;
  std::vector<size_t> from_;  // receives, by the rank that they name
  size_t from_any_ = 0;
};

}  // namespace cgx
