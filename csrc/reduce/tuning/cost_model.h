// The cost model: predicted time of a reduction. The autotuner fits it to a link that it measures;
// torch_cgx/cost takes a link's numbers from the user.
//
//     seconds   = steps * latency + values * seconds_per_value + overlap(wire, processor, rounds)
//     wire      = bytes * seconds_per_byte
//     processor = encoded * encode seconds + decoded * decode seconds + bytes * work_per_byte
//     overlap   = max + min / rounds
//
// With one round the stages of a message follow each other. With many rounds the longer of wire and
// processor hides the other, except for one round. seconds_per_value is the cost of a value with
// any codec (passes over memory, sums inside a host).
//
// Uses only + - * / and comparisons on doubles, no library functions: equal numbers give equal
// results on every rank. Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "reduce/plan/plan.h"

namespace cgx {

/// The form in which the compressed layers of a call are sent. A tie goes to the first in this
/// order.
enum class Decision : uint8_t { kExact = 0, kHalf = 1, kAsked = 2 };
inline constexpr size_t kDecisions = 3;
inline constexpr Decision kAllDecisions[] = {Decision::kExact, Decision::kHalf, Decision::kAsked};
/// "exact", "16 bits", "asked"
const char* name_of(Decision decision);

/// The work of one rank for a message.
struct MessageCost {
  double steps = 0;    // exchanges, one after the other
  double bytes = 0;    // that leave the rank, to other hosts where there are several
  double values = 0;   // of the message
  double encoded = 0;  // values
  double decoded = 0;
  double rounds = 1;      // pipelined
  double compressed = 0;  // share of the values that is not raw
};

/// Seconds per value, on the slowest rank.
struct CodecCost {
  double encode = 0;
  double decode = 0;
};

struct LinkModel {
  double latency = 0;            // seconds per exchange
  double seconds_per_byte = 0;   // that leaves a rank
  double seconds_per_value = 0;  // whatever the codec
  /// Of the rank's core, to send a byte and to receive one. 0 where the link was measured:
  /// seconds_per_byte has it then.
  double work_per_byte = 0;
};

/// Seconds that the link is busy, and a core of the rank.
struct Work {
  double wire = 0;
  double processor = 0;
};

MessageCost cost_of(const Plan& plan, const Topology& topology);

/// `raw` is the codec of the layers that are not compressed.
Work work_of(const LinkModel& link, const MessageCost& cost, const CodecCost& codec,
             const CodecCost& raw);

/// Seconds.
double predict(const LinkModel& link, const MessageCost& cost, const CodecCost& codec,
               const CodecCost& raw);

/// The measurements: a small exact message, and a large one, exact and compressed.
struct LinkProbes {
  MessageCost small, exact, asked;
  double small_seconds = 0, exact_seconds = 0, asked_seconds = 0;
};
/// The model that reproduces the measurements. If there is none: a model that is right for the
/// exact messages and as near as possible for the compressed one. No number is negative.
LinkModel fit_link(const LinkProbes& probes, const CodecCost& asked, const CodecCost& raw);

/// Seconds by decision; negative: unavailable.
using Estimates = std::array<double, kDecisions>;

/// The fastest; more bits unless fewer save more than 1 - kClearly of the time. kAsked if none is
/// known.
inline constexpr double kClearly = 0.98;
Decision fastest(const Estimates& seconds);

}  // namespace cgx
