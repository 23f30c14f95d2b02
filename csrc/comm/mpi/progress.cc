#include "comm/mpi/progress.h"

#include <sched.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "comm/futex.h"

namespace cgx {
namespace {

constexpr int kSpins = 30;
constexpr int kYields = 100;
constexpr auto kShortestSleep = std::chrono::microseconds(50);
constexpr auto kLongestSleep = std::chrono::milliseconds(1);
// Calls per look for bulk messages: some libraries move only 30 KB in each call.
constexpr int kCallsPerLook = 8;
// A part of a bulk message (4 MiB) takes less time than this at 1 Gbit/s.
constexpr auto kBulkIdle = std::chrono::milliseconds(50);
// A thread that has called help() within this time will do so again.
constexpr auto kHelped = std::chrono::milliseconds(2);
// MPI may report a send as ended that it has only copied and not yet passed to the network.
constexpr auto kLinger = std::chrono::seconds(1);
constexpr auto kDoze = std::chrono::milliseconds(20);
constexpr auto kDrainTime = std::chrono::milliseconds(200);

Failure failure_of_end(const CgxMpiApi& api, const CgxMpiEnd& end) {
  if (end.cancelled != 0) return {FailureKind::kAborted, "the receive was cancelled"};
  char text[512] = "";
  api.error_text(end.error, text, sizeof text);
  FailureKind kind = FailureKind::kError;
  switch (api.error_kind(end.error)) {
    case CGX_MPI_TRUNCATED:
      kind = FailureKind::kMismatch;
      break;
    case CGX_MPI_PEER_LOST:
      kind = FailureKind::kPeerLost;
      break;
    default:
      break;
  }
  return {kind, str_of(text, " (", api.kind, " error ", end.error, ")")};
}

}  // namespace

void MpiProgress::submit(std::shared_ptr<MpiTransfer> transfer,
                         const std::vector<uint64_t>& requests) {
  bool asleep = false;
  {
    std::lock_guard lock(mutex_);
    for (uint64_t request : requests) {
      fresh_requests_.push_back(request);
      fresh_entries_.push_back({transfer, false});
    }
    asleep = asleep_;
  }
  if (asleep) wake_.notify_one();
}

void MpiProgress::cancel_marked() {
  {
    std::lock_guard lock(mutex_);
    cancel_seen_ = true;
  }
  wake_.notify_one();
}

void MpiProgress::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
}

void MpiProgress::end_part(MpiTransfer& transfer, const CgxMpiEnd& end) const {
  if ((end.error != 0 || end.cancelled != 0) && transfer.failure.text.empty()) {
    transfer.failure = failure_of_end(api_, end);
    // The other parts of a receive will not come; other parts of a send may still be on their way.
    transfer.cancel.store(true, std::memory_order_relaxed);
  }
  if (--transfer.parts != 0) return;
  const bool good = transfer.failure.text.empty();
  transfer.state.store(good ? MpiTransfer::kDone : MpiTransfer::kFailed, std::memory_order_release);
  transfer.channel->ring();
}

// True if there was anything new.
bool MpiProgress::take_news() {
  std::vector<WatchedRequest> entries;
  bool cancel = false;
  {
    std::lock_guard lock(mutex_);
    entries.swap(fresh_entries_);
    requests_.insert(requests_.end(), fresh_requests_.begin(), fresh_requests_.end());
    fresh_requests_.clear();
    std::swap(cancel, cancel_seen_);
  }
  for (WatchedRequest& entry : entries) {
    // Also transfers that were cancelled before they came here.
    cancel = cancel || entry.transfer->cancel.load(std::memory_order_relaxed) ||
             entry.transfer->channel->aborted();
    foreground_ += entry.transfer->background ? 0 : 1;
    bulk_ += entry.transfer->bulk ? 1 : 0;
    entries_.push_back(std::move(entry));
  }
  if (cancel) cancel_requests(false);
  return cancel || !entries.empty();
}

void MpiProgress::cancel_requests(bool all) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    WatchedRequest& entry = entries_[i];
    MpiTransfer& transfer = *entry.transfer;
    if (!transfer.receiving || entry.cancelled) continue;
    if (!all && !transfer.cancel.load(std::memory_order_relaxed) && !transfer.channel->aborted()) {
      continue;
    }
    entry.cancelled = true;
    // An error means that the request has ended or cannot be cancelled; its test shows which.
    api_.cancel(&requests_[i]);
    if (transfer.background) {
      transfer.background = false;
      ++foreground_;
    }
  }
}

bool MpiProgress::poll() {
  ends_.resize(entries_.size());
  int ended = 0;
  const int error =
      api_.test_some(static_cast<int>(entries_.size()), requests_.data(), &ended, ends_.data());
  if (error != 0) {
    // The state of the requests is unknown: their memory is never freed.
    auto* abandoned = new std::vector<WatchedRequest>(std::move(entries_));
    entries_.clear();
    requests_.clear();
    foreground_ = 0;
    bulk_ = 0;
    for (WatchedRequest& entry : *abandoned) end_part(*entry.transfer, {0, error, 0, 0});
    return true;
  }
  if (ended == 0) return false;
  // From the back: the entry that moves into a gap has been handled already.
  std::sort(ends_.begin(), ends_.begin() + ended,
            [](const CgxMpiEnd& a, const CgxMpiEnd& b) { return a.index > b.index; });
  bool more_to_cancel = false;
  for (int i = 0; i < ended; ++i) {
    const CgxMpiEnd& end = ends_[i];
    const WatchedRequest entry = std::move(entries_[end.index]);
    entries_[end.index] = std::move(entries_.back());
    entries_.pop_back();
    requests_[end.index] = requests_.back();
    requests_.pop_back();
    foreground_ -= entry.transfer->background ? 0 : 1;
    bulk_ -= entry.transfer->bulk ? 1 : 0;
    end_part(*entry.transfer, end);
    const bool good = entry.transfer->state.load() == MpiTransfer::kDone;
    if (good && entry.transfer->then) entry.transfer->then();
    more_to_cancel = more_to_cancel || entry.transfer->cancel.load(std::memory_order_relaxed);
  }
  if (more_to_cancel) cancel_requests(false);
  return true;
}

bool MpiProgress::look() {
  const bool news = take_news();
  bool happened = poll();
  for (int call = 1; !happened && bulk_ != 0 && call < kCallsPerLook; ++call) happened = poll();
  happened = happened || news;
  if (happened) last_ = Clock::now();
  return happened;
}

bool MpiProgress::help() {
  std::unique_lock lock(poll_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || ended_) return false;
  const bool happened = look();
  helped_ = Clock::now();
  return happened;
}

MpiProgress::Clock::duration MpiProgress::nap_after(Clock::duration idle) const {
  if (bulk_ != 0 && idle < kBulkIdle) return kShortestSleep;
  return std::clamp<Clock::duration>(idle / 20, kShortestSleep, kLongestSleep);
}

bool MpiProgress::stay_awake(int n) {
  if (n >= kSpins + kYields) return false;
  if (n < kSpins) {
    cpu_relax();
  } else {
    sched_yield();
  }
  return true;
}

bool MpiProgress::stopping() {
  std::lock_guard lock(mutex_);
  return stopping_;
}

// `rounds` looks since something happened.
void MpiProgress::pause(int& rounds) {
  std::unique_lock polling(poll_mutex_);
  const Clock::time_point now = Clock::now();
  const Clock::duration idle = now - last_;
  const bool helped = now - helped_ < kHelped;
  const bool waited_for = foreground_ != 0;
  const bool empty = entries_.empty();
  polling.unlock();
  if (waited_for && !helped && stay_awake(rounds++)) return;
  auto nap = helped ? Clock::duration(kHelped) : nap_after(idle);
  auto news = [this] { return stopping_ || cancel_seen_ || !fresh_entries_.empty(); };
  // A thread inside help() takes new entries itself.
  auto urgent = [&] { return helped ? stopping_ : news(); };
  std::unique_lock lock(mutex_);
  if (urgent()) return;
  if (!waited_for && idle > kLinger) {
    asleep_ = true;
    if (empty) {
      wake_.wait(lock, news);
    } else {
      wake_.wait_for(lock, kDoze, news);
    }
  } else {
    asleep_ = !helped && nap > kShortestSleep;
    wake_.wait_for(lock, nap, urgent);
  }
  asleep_ = false;
}

void MpiProgress::run() {
  for (int rounds = 0; !stopping();) {
    {
      std::lock_guard lock(poll_mutex_);
      if (Clock::now() - helped_ >= kHelped && look()) rounds = 0;
    }
    pause(rounds);
  }
  std::lock_guard lock(poll_mutex_);
  ended_ = true;
  drain();
}

void MpiProgress::drain() {
  take_news();
  for (const WatchedRequest& entry : entries_) {
    entry.transfer->channel->abort("MPI is being finalised");
  }
  cancel_requests(true);
  const auto end = Clock::now() + kDrainTime;
  while (!entries_.empty() && Clock::now() < end) {
    if (!poll()) sched_yield();
  }
  if (!entries_.empty()) (void)new std::vector<WatchedRequest>(std::move(entries_));
  entries_.clear();
  requests_.clear();
}

}  // namespace cgx
