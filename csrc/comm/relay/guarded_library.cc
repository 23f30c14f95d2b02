#include "comm/relay/guarded_library.h"

#include <chrono>
#include <string>

#include "comm/direct_transfers.h"

namespace cgx::relay {

GuardedLibrary::GuardedLibrary(std::shared_ptr<PointToPoint> library, size_t capacity,
                               std::function<int(int)> called)
    : library_(std::move(library)),
      called_(std::move(called)),
      capacity_(capacity),
      classes_(library_->tags() >= kTags),
      direct_(library_->tags() >= kTags * (1 + DirectTransfers::kDirectLanes) &&
              library_->lets_go()) {}

void GuardedLibrary::check_usable() {
  if (!broken_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(failure_mutex_);
  throw_failure(*first_failure_);
}

void GuardedLibrary::fail(Failure failure) {
  bool first = false;
  {
    std::lock_guard lock(failure_mutex_);
    first = !first_failure_;
    if (first) first_failure_ = std::move(failure);
    failure = *first_failure_;
  }
  broken_.store(true, std::memory_order_release);
  if (first) {
    try {
      library_->abort(failure.text);
    } catch (const std::exception&) {
      // The caller needs the cause; that the library cannot even abort adds nothing to it.
    }
  }
  throw_failure(failure);
}

void GuardedLibrary::step_failed(int peer, const char* what, const Deadline& started,
                                 const std::exception& error) {
  Failure failure = failure_of(error);
  if (failure.rank >= 0) fail(std::move(failure));  // the cause came from a peer
  failure.text = str_of("rank ", called(rank()), " over ", name(), ", ", what, " rank ",
                        called(peer), ", ", started.elapsed_text(), ": ", failure.text);
  fail(std::move(failure));
}

void GuardedLibrary::wait(Pending& pending, int peer, const char* what, const Deadline& deadline) {
  waits_.begin(peer, what, CurrentWait::Clock::now());
  guarded(peer, what, [&] { pending.wait(deadline); });
  waits_.end();
}

void GuardedLibrary::check_wait(CurrentWait::Clock::time_point now) {
  if (broken_.load(std::memory_order_acquire)) return;
  const auto wait = waits_.look();
  if (!wait) return;
  const std::string why = library_->broken(wait->peer);
  if (why.empty() || !waits_.give_up(*wait, now)) return;
  const double seconds = std::chrono::duration<double>(now - wait->began).count();
  abort({FailureKind::kPeerLost,
         str_of("rank ", called(rank()), " over ", name(), ", ", wait->what, " rank ",
                called(wait->peer), ", ", seconds_text(seconds), ": ", why)});
}

void GuardedLibrary::abort(const Failure& cause) {
  {
    std::lock_guard lock(failure_mutex_);
    if (!first_failure_) first_failure_ = cause;
  }
  broken_.store(true, std::memory_order_release);
  library_->abort(cause.text);
}

std::optional<Failure> GuardedLibrary::failure() {
  if (!broken_.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard lock(failure_mutex_);
  return first_failure_;
}

bool GuardedLibrary::close() {
  const bool sole_owner = library_.use_count() == 1;
  library_.reset();
  return sole_owner;
}

}  // namespace cgx::relay
