#include "comm/mail/book.h"

#include <exception>
#include <new>
#include <string>

#include "base/deadline.h"
#include "base/error.h"

namespace cgx {

MailBook::MailBook(MailMemory& memory, MailDisagreement disagreement)
    : memory_(memory), desk_{memory, Matching(memory.size()), std::move(disagreement), {}} {
  lines_.reserve(static_cast<size_t>(memory.size()));
  for (int peer = 0; peer < memory.size(); ++peer) lines_.emplace_back(desk_, peer);
}

template <class Work>
bool MailBook::guarded(const Work& work) {
  bool moved = false;
  try {
    moved = work();
  } catch (const std::bad_alloc&) {
    desk_.broken = Failure{FailureKind::kResource,
                           str_of("rank ", memory_.rank(),
                                  " has no memory for messages that came before their receive")};
  } catch (const std::exception& e) {
    desk_.broken = cgx::failure_of(e);
  }
  if (desk_.broken && !broken_) fail(std::exchange(desk_.broken_by, nullptr), *desk_.broken);
  return moved;
}

void MailBook::post(const MailTransferPtr& transfer) {
  transfer->since = Clock::now();
  if (transfer->way == MailTransfer::Way::kReceive) {
    ++desk_.pending;
    guarded([&] {
      begin(transfer);
      return true;
    });
    return;
  }
  const int peer = transfer->peer;
  if (memory_.state(peer).left.load(std::memory_order_relaxed) != 0) {
    ++desk_.pending;
    return fail(transfer, failure_of_wait(FailureKind::kPeerLost, *transfer,
                                          "it has closed its communicator"));
  }
  MailLine& line = lines_[static_cast<size_t>(peer)];
  line.send(transfer);
  guarded([&] { return line.push(); });
}

void MailBook::begin(const MailTransferPtr& receive) {
  if (auto kept = desk_.matching.take_kept(*receive)) {
    return lines_[static_cast<size_t>(kept->source)].take(receive, std::move(*kept));
  }
  desk_.matching.add(receive);
  for (int peer = 0; peer < memory_.size() && !receive->over(); ++peer) {
    if (peer == memory_.rank()) continue;
    if (receive->peer == peer || receive->peer == MailTransfer::kAnyRank) {
      lines_[static_cast<size_t>(peer)].pull();
    }
  }
}

bool MailBook::move() {
  bool moved = false;
  for (MailLine& line : lines_) {
    moved |= line.push();
    moved |= line.pull();
  }
  return moved;
}

bool MailBook::progress() {
  if (desk_.pending == 0) return false;
  const bool moved = guarded([&] { return move(); });
  if (!broken_ && memory_.broken()) fail(nullptr, memory_.failure());
  return moved;
}

Failure MailBook::failure_of_wait(FailureKind kind, const MailTransfer& transfer,
                                  const std::string& end) const {
  const bool sends = transfer.way == MailTransfer::Way::kSend;
  const int source = transfer.source();
  const std::chrono::duration<double> waited = Clock::now() - transfer.since;
  const std::string peer =
      source == MailTransfer::kAnyRank ? "any rank" : str_of("rank ", source);
  return {kind, str_of("rank ", memory_.rank(), " waited ", seconds_text(waited.count()), " for ",
                       peer, sends ? " to receive" : " to send", " a message with tag ",
                       transfer.tag, " (", transfer.moved(), " of ", transfer.shape.bytes,
                       " bytes moved): ", end)};
}

std::optional<MailBook::Loss> MailBook::loss(bool ask) {
  const bool any = desk_.matching.expecting_any() > 0;
  int others = 0, left = 0;
  for (int peer = 0; peer < memory_.size(); ++peer) {
    if (peer == memory_.rank()) continue;
    const MailLine& line = lines_[static_cast<size_t>(peer)];
    const bool waits = line.sends() || line.receives() ||
                       desk_.matching.expecting_only(peer) > 0;
    ++others;
    const bool gone = memory_.state(peer).left.load(std::memory_order_seq_cst) != 0;
    left += gone ? 1 : 0;
    if (!waits && (!any || gone)) continue;
    // A clean close gives the life sign back too, after it has said so.
    const bool dead = !gone && ask && !memory_.alive(peer) &&
                      memory_.state(peer).left.load(std::memory_order_seq_cst) == 0;
    if (!gone && !dead) continue;
    MailTransferPtr first = line.first();
    if (!first) first = desk_.matching.first(waits ? peer : MailTransfer::kAnyRank);
    const std::string end = gone ? "it has closed its communicator"
                            : waits ? std::string("its process has ended")
                                    : str_of("the process of rank ", peer, " has ended");
    return Loss{first, failure_of_wait(FailureKind::kPeerLost, *first, end)};
  }
  if (!any || left < others) return std::nullopt;
  const MailTransferPtr first = desk_.matching.first(MailTransfer::kAnyRank);
  return Loss{first, failure_of_wait(FailureKind::kPeerLost, *first,
                                     "all others have closed their communicators")};
}

void MailBook::fail(const MailTransferPtr& first, const Failure& failure) {
  broken_ = failure;
  if (first && !first->over()) desk_.end(first, failure);
  std::vector<MailTransferPtr> all;
  for (MailLine& line : lines_) line.clear(all);
  for (MailTransferPtr& receive : desk_.matching.clear()) all.push_back(std::move(receive));
  for (const MailTransferPtr& transfer : all) {
    if (!transfer->over()) desk_.end(transfer, failure);
  }
}

}  // namespace cgx
