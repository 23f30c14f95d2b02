// Causes of failures and the calls of stuck ranks, exchanged through the group's store because the
// communicators cannot carry them.
//
// Used only when something is wrong. The store may be what is wrong (its server died, or was
// stopped), so every access runs in a thread of its own and is waited for with a limit.
// Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "comm/failure.h"
#include "comm/fingerprint.h"

namespace cgx {

class ErrorStore {
 public:
  ErrorStore(StorePtr store, int rank);

  struct Posted {
    int rank;
    Failure failure;
  };

  /// Posts the failure of this rank, unless another rank has posted one or does so within
  /// `hesitation`. Returns the first posted failure, or nothing if the store does not answer within
  /// `patience` more.
  std::optional<Posted> post(const Failure& failure, std::chrono::milliseconds patience,
                             std::chrono::milliseconds hesitation = {});

  /// Says that this rank leaves the group with nothing under way; waits `patience` at most.
  void leave(std::chrono::milliseconds patience);

  struct Finding {
    std::optional<Posted> failure;
    std::vector<int> left;                 // of the ranks that listen() was asked about
    std::optional<PeerFingerprint> other;  // a rank has another call under the same number
    Fingerprint mine;                      // this rank's call of that number
  };

  // Each of the next three functions also looks for a posted failure. It does nothing and returns
  // false while an earlier one is under way.

  /// Starts to look whether another rank has posted a failure, and which of `peers` have left.
  bool listen(const std::vector<int>& peers = {});
  /// Starts to compare this rank's recent calls (newest last) with the calls that other stuck ranks
  /// have posted. `ask`: number of a call that ranks which are not stuck shall also post, by
  /// answer(); 0: none.
  bool compare(std::vector<Fingerprint> fingerprints, uint64_t ask = 0);
  /// The same for the call whose number another rank has asked for, if it is among the
  /// fingerprints.
  bool answer(std::vector<Fingerprint> fingerprints);
  /// The result of the last of these three functions; each result is returned once.
  std::optional<Finding> finding();

 private:
  struct State;
  /// Runs `work` on a Finding, in a thread of its own; not while one runs.
  bool start(std::function<void(State&, Finding&)> work);
  const std::shared_ptr<State> state_;
};

}  // namespace cgx
