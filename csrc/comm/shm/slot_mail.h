// The memory of messages over what the ranks of a slot exchange share.
#pragma once

#include <memory>
#include <vector>

#include "comm/mail/memory.h"
#include "comm/shm/slot_memory.h"

namespace cgx {

class SlotMail : public MailMemory {
 public:
  /// `owner` keeps the memory alive.
  SlotMail(std::shared_ptr<void> owner, const SlotMemory& memory, int rank);

  int rank() const override { return rank_; }
  int size() const override { return memory_.layout().size; }
  MailRank& state(int rank) override { return memory_.mail(rank); }
  MailRing& own(int to) override;
  MailRing* of(int from) override;
  bool alive(int peer) override { return peer >= 0; }
  bool broken() override;
  Failure failure() override;

 protected:
  /// Memory of sizeof(MailRing) zeros, at a border of a cache line, for the messages of this rank to
  /// `to`. ResourceError.
  virtual std::byte* take(int to) = 0;
  /// What `from` has taken for messages to this rank; null: it is not there.
  virtual std::byte* find(int from) = 0;

  const SlotMemory& memory() const { return memory_; }

 private:
  const std::shared_ptr<void> owner_;
  const SlotMemory memory_;
  const int rank_;
  std::vector<MailRing*> own_;
};

}  // namespace cgx
