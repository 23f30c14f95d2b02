// Where the ranks of a group tell each other, through the group's store, what their communicators
// cannot: the cause of a failure, and what a rank that got stuck is doing.
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

  /// Tells the failure of this rank, unless another rank was faster or is within `hesitation`;
  /// returns the first one, or nothing if the store did not answer within `patience` more.
  std::optional<Posted> post(const Failure& failure, std::chrono::milliseconds patience,
                             std::chrono::milliseconds hesitation = {});

  struct Finding {
    std::optional<Posted> failure;
    std::optional<PeerFingerprint> other;  // a rank says something else of the same number
    Fingerprint mine;                      // what this rank said
  };

  // Each of these three looks for a failure, too, and returns false, having done nothing, while an
  // earlier one is under way.

  /// Starts to look whether another rank has posted a failure.
  bool listen();
  /// Starts to compare what this rank has been doing (newest last) with what the ranks that got
  /// stuck before have said. `ask`: a number of a call that ranks which are not stuck shall tell
  /// of, too, by answer(); 0: none.
  bool compare(std::vector<Fingerprint> fingerprints, uint64_t ask = 0);
  /// The same for what another rank has asked for, if it is among the fingerprints.
  bool answer(std::vector<Fingerprint> fingerprints);
  /// What the last of them found, once.
  std::optional<Finding> finding();

 private:
  struct State;
  /// Runs `work` on a Finding, in a thread of its own; not while one runs.
  bool start(std::function<void(State&, Finding&)> work);
  const std::shared_ptr<State> state_;
};

}  // namespace cgx
