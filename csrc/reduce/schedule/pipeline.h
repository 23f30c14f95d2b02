// Runs the stages of a call's rounds in an order that is the same on all ranks, so that the
// messages of one pair are received in the order in which they are sent.
#pragma once

#include <cstddef>

namespace cgx {

/// Calls step(stage, round) for all stages of all rounds; the stages of a round in ascending order.
/// At most `depth` rounds are under way at once.
///
/// depth >= stages: staggered. Each step begins one round and moves every round under way on by one
/// stage, the youngest first, so a message sent in one step travels until the next one. The last
/// stage waits for `depth - stages` steps more.
/// depth < stages: `depth` rounds go side by side; all of them pass a stage before the first of
/// them enters the next.
template <typename Step>
void for_each_step(size_t rounds, int stages, size_t depth, Step step) {
  const auto count = static_cast<size_t>(stages);
  if (depth >= count) {
    for (size_t time = 0; rounds > 0 && time < rounds + depth - 1; ++time) {
      for (size_t stage = 0; stage < count; ++stage) {
        const size_t late = stage + 1 == count ? depth - 1 : stage;
        if (time >= late && time - late < rounds) step(static_cast<int>(stage), time - late);
      }
    }
    return;
  }
  for (size_t first = 0; first < rounds; first += depth) {
    for (int stage = 0; stage < stages; ++stage) {
      for (size_t round = first; round < rounds && round < first + depth; ++round) {
        step(stage, round);
      }
    }
  }
}

}  // namespace cgx
