// Numbers that all ranks of a group give and all of them see: how the autotuner keeps its ranks in
// agreement.
//
// Contract: collective. All ranks make the same calls in the same order, with as many numbers. What
// comes back is equal to the bit on all ranks. Bytes and seconds count in `overhead`, not in the
// engine's statistics.
// Errors: what Engine::run() raises, for the call with that number.
// Thread-safety: on the thread that drives the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "base/deadline.h"
#include "reduce/engine.h"
#include "reduce/tuning/shared_clock.h"

namespace cgx {

class RankNumbers {
 public:
  RankNumbers(Engine& engine, Stats& overhead) : engine_(engine), overhead_(overhead) {}

  /// The numbers of all ranks, in rank order. Ends at about the same time on all ranks.
  std::vector<float> gather(const std::vector<float>& mine, const Deadline& deadline,
                            uint64_t number);
  /// The same of spans, by rank.
  std::vector<std::vector<Span>> gather_spans(const std::vector<Span>& mine,
                                              const Deadline& deadline, uint64_t number);
  /// Returns once all ranks have called it.
  void barrier(const Deadline& deadline, uint64_t number) { gather({0.0F}, deadline, number); }

 private:
  Engine& engine_;
  Stats& overhead_;
};

}  // namespace cgx
