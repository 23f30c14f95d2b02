// Groups of ranks in this process, over every communicator that needs no library.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "machinery/mock_network.h"
#include "reduce/engine.h"

namespace cgx::native {

enum class CommunicatorKind { kInProcess, kShm, kRelay, kLazyRelay };

inline constexpr CommunicatorKind kKinds[] = {CommunicatorKind::kInProcess, CommunicatorKind::kShm,
                                              CommunicatorKind::kRelay,
                                              CommunicatorKind::kLazyRelay};

/// The host of each rank.
using Hosts = std::vector<std::string>;

/// One to seven ranks, on one to three hosts.
const std::vector<Hosts>& layouts();

inline constexpr Reduction kReductions[] = {Reduction::kAuto, Reduction::kOneShot,
                                            Reduction::kScatterReduceAllGather, Reduction::kRing};

/// Long enough for a machine that is busy and slowed down by a sanitizer.
inline Deadline patience() { return Deadline::after(std::chrono::seconds(120)); }
inline Deadline soon(int milliseconds) {
  return Deadline::after(std::chrono::milliseconds(milliseconds));
}

/// body(rank) in a thread for every rank. Waits for all; throws the first failed CHECK, or else the
/// first error.
void run_ranks(int size, const std::function<void(int)>& body);

/// A dictionary that threads share.
std::shared_ptr<Rendezvous> local_rendezvous();

struct Group {
  std::shared_ptr<MockNetwork> network;  // of the relays
  std::vector<std::unique_ptr<Communicator>> ranks;

  std::vector<Communicator*> pointers() const;
};

/// `slots` is for CommunicatorKind::kInProcess; the other communicators have their own number.
Group make_group(CommunicatorKind communicator, int size, size_t capacity, int slots = 2);

/// Engines of all ranks, over `intra` inside hosts and `cross` between them (not SHM, which takes
/// too few exchanges at once). hosts[r] labels the host of rank r.
struct EngineGroup {
  std::vector<std::unique_ptr<Engine>> ranks;
  std::vector<std::shared_ptr<MockNetwork>> networks;

  size_t size() const { return ranks.size(); }
};
/// wrap(communicator, rank, across): what the engine of a rank gets in place of a communicator;
/// none: the communicator itself.
using Wrap = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>, int, bool)>;
EngineGroup make_engines(const Hosts& hosts, EngineOptions options, CommunicatorKind intra,
                         CommunicatorKind cross, const Wrap& wrap = nullptr);

/// Messages of these sizes everywhere.
EngineOptions options_of(Reduction reduction, size_t intra_bytes, size_t segment_bytes,
                         size_t cross_bytes);

}  // namespace cgx::native
