#include "backend/health/error_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

constexpr char kFailureKey[] = "cgx/failure";
constexpr char kAskedKey[] = "cgx/asked";
constexpr std::chrono::seconds kSilence{30};
constexpr std::chrono::milliseconds kPatienceWithSilence{10};
constexpr std::chrono::milliseconds kLookAgain{5};

constexpr std::chrono::steady_clock::duration kNotSilent{};

std::atomic<std::chrono::steady_clock::duration>& silent_until() {
  static std::atomic<std::chrono::steady_clock::duration> until{kNotSilent};
  return until;
}

std::string left_key(int rank) { return str_of("cgx/gone/", rank); }

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// The value that is there after the first of all ranks has set it.
std::string first_of(c10d::Store& store, const std::string& key, const std::string& mine) {
  const std::vector<uint8_t> value = store.compareSet(key, {}, bytes_of(mine));
  return {value.begin(), value.end()};
}

std::string pack(int rank, const Failure& failure) {
  return str_of(rank, ' ', pack_failure(failure));
}

ErrorStore::Posted unpack_posted(const std::string& text) {
  const size_t space = text.find(' ');
  ErrorStore::Posted posted{
      std::atoi(text.c_str()),
      unpack_failure(space == std::string::npos ? "" : text.substr(space + 1))};
  if (posted.failure.rank < 0) posted.failure.rank = posted.rank;
  return posted;
}

std::string pack(int rank, const Fingerprint& fingerprint) {
  std::string text = std::to_string(rank);
  for (uint64_t word : fingerprint.words) text += str_of(' ', word);
  return text;
}

PeerFingerprint unpack_fingerprint(const std::string& text, uint64_t number) {
  PeerFingerprint peer;
  peer.fingerprint.number = number;
  std::istringstream in(text);
  in >> peer.rank;
  for (uint64_t& word : peer.fingerprint.words) in >> word;
  return peer;
}

std::optional<ErrorStore::Posted> look_up(c10d::Store& store) {
  if (!store.check({kFailureKey})) return std::nullopt;
  const std::vector<uint8_t> value = store.get(kFailureKey);
  return unpack_posted({value.begin(), value.end()});
}

}  // namespace

struct ErrorStore::State {
  StorePtr store;
  int rank;
  std::mutex mutex;
  bool looking = false;
  std::optional<Finding> found;

  void compare(const std::vector<Fingerprint>& fingerprints, Finding& finding) {
    for (const Fingerprint& fingerprint : fingerprints) {
      const std::string key = str_of("cgx/call/", fingerprint.number);
      const PeerFingerprint first =
          unpack_fingerprint(first_of(*store, key, pack(rank, fingerprint)), fingerprint.number);
      if (first.fingerprint == fingerprint) continue;
      finding.other = first;
      finding.mine = fingerprint;
      return;
    }
  }

  // Runs `work` in a thread of its own. False: the system gives no thread.
  static bool launch(std::function<void()> work) {
    try {
      std::thread(std::move(work)).detach();
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  // `work` in a thread that is left alone when it takes too long.
  template <typename T>
  static std::optional<T> bounded(const std::shared_ptr<State>& state,
                                  std::chrono::milliseconds patience,
                                  std::function<std::optional<T>(State&)> work) {
    auto promise = std::make_shared<std::promise<std::optional<T>>>();
    std::future<std::optional<T>> answer = promise->get_future();
    const bool runs = launch([state, promise, work = std::move(work)] {
      try {
        std::optional<T> value = work(*state);
        promise->set_value(std::move(value));
        silent_until() = kNotSilent;  // late perhaps, but it lives
      } catch (const std::exception&) {
        // The store is gone: then there is nothing to learn from it.
        promise->set_value(std::nullopt);
      }
    });
    if (!runs) return std::nullopt;
    // A process that has waited for a dead store once waits less for it in other groups.
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (now < silent_until().load()) patience = std::min(patience, kPatienceWithSilence);
    if (answer.wait_for(patience) != std::future_status::ready) {
      silent_until() = now + kSilence;
      // It may have come just now, and its thread have written before this one.
      if (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        return std::nullopt;
      }
      silent_until() = kNotSilent;
    }
    return answer.get();
  }
};

ErrorStore::ErrorStore(StorePtr store, int rank) : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank;
}

std::optional<ErrorStore::Posted> ErrorStore::post(const Failure& failure,
                                                   std::chrono::milliseconds patience,
                                                   std::chrono::milliseconds hesitation) {
  const auto work = [failure, hesitation](State& state) -> std::optional<Posted> {
    if (hesitation > hesitation.zero()) {
      if (auto first = look_up(*state.store)) return first;
    }
    // After the first answer: on a busy host that alone may take longer.
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < hesitation) {
      std::this_thread::sleep_for(kLookAgain);
      if (auto first = look_up(*state.store)) return first;
    }
    return unpack_posted(first_of(*state.store, kFailureKey, pack(state.rank, failure)));
  };
  return State::bounded<Posted>(state_, patience + hesitation, work);
}

bool ErrorStore::start(std::function<void(State&, Finding&)> work) {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->looking) return false;
    state_->looking = true;
  }
  const bool runs = State::launch([state = state_, work = std::move(work)] {
    Finding finding;
    try {
      finding.failure = look_up(*state->store);
      work(*state, finding);
    } catch (const std::exception&) {
      // As above; the next one tries again.
    }
    std::lock_guard<std::mutex> lock(state->mutex);
    state->found = finding;
    state->looking = false;
  });
  if (runs) return true;
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->looking = false;
  return false;
}

bool ErrorStore::listen(const std::vector<int>& peers) {
  return start([peers](State& state, Finding& finding) {
    for (int peer : peers) {
      if (state.store->check({left_key(peer)})) finding.left.push_back(peer);
    }
  });
}

void ErrorStore::leave(std::chrono::milliseconds patience) {
  State::bounded<bool>(state_, patience, [](State& state) -> std::optional<bool> {
    state.store->set(left_key(state.rank), bytes_of("left"));
    return true;
  });
}

bool ErrorStore::compare(std::vector<Fingerprint> fingerprints, uint64_t ask) {
  return start([fingerprints = std::move(fingerprints), ask](State& state, Finding& finding) {
    state.compare(fingerprints, finding);
    if (ask != 0) state.store->set(kAskedKey, bytes_of(std::to_string(ask)));
  });
}

bool ErrorStore::answer(std::vector<Fingerprint> fingerprints) {
  return start([fingerprints = std::move(fingerprints)](State& state, Finding& finding) {
    if (!state.store->check({kAskedKey})) return;
    const std::vector<uint8_t> text = state.store->get(kAskedKey);
    const uint64_t asked =
        std::strtoull(std::string(text.begin(), text.end()).c_str(), nullptr, 10);
    for (const Fingerprint& fingerprint : fingerprints) {
      if (fingerprint.number == asked) return state.compare({fingerprint}, finding);
    }
  });
}

std::optional<ErrorStore::Finding> ErrorStore::finding() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return std::exchange(state_->found, std::nullopt);
}

}  // namespace cgx
