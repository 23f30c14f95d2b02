#include "reduce/tuning/decision.h"

namespace cgx {

const char* name_of(Decision decision) {
  switch (decision) {
    case Decision::kExact:
      return "exact";
    case Decision::kHalf:
      return "16 bits";
    case Decision::kAsked:
      return "asked";
  }
  return "unknown";
}

Decision fastest(const Seconds& seconds) {
  Decision best = Decision::kAsked;
  double least = -1;
  for (Decision decision : kAllDecisions) {
    const double one = seconds[static_cast<size_t>(decision)];
    if (one >= 0 && (least < 0 || one < kClearly * least)) {
      best = decision;
      least = one;
    }
  }
  return best;
}

}  // namespace cgx
