// What a plan costs a rank, and the time that it takes on a link: a model, for predictions.
//
//     seconds   = steps * latency + overlap(wire, processor, rounds)
//     wire      = bytes * seconds_per_byte
//     processor = encoded * encode seconds + decoded * decode seconds + bytes * work_per_byte
//     overlap   = max + min / rounds
//
// With one round the stages of a message follow each other. With many rounds the longer of wire and
// processor hides the other, except for one round. Exact values cost no encoding.
//
// Thread-safety: pure functions.
#pragma once

#include "reduce/plan/plan.h"

namespace cgx {

/// The work of one rank for a call.
struct PlanCost {
  double steps = 0;    // exchanges, one after the other
  double bytes = 0;    // that leave the rank, to other hosts where there are several
  double encoded = 0;  // values, exact ones not included
  double decoded = 0;
  double rounds = 1;  // pipelined
};

/// Seconds per value.
struct CodecSpeed {
  double encode = 0;
  double decode = 0;
};

struct Link {
  double latency = 0;           // seconds per exchange
  double seconds_per_byte = 0;  // that leaves a rank
  double work_per_byte = 0;     // of the rank's core, to send a byte and to receive one
};

/// Seconds that the link is busy, and a core of the rank.
struct Work {
  double wire = 0;
  double processor = 0;
};

PlanCost cost_of(const Plan& plan, const Topology& topology);

Work work_of(const Link& link, const PlanCost& cost, const CodecSpeed& codec);

/// Seconds.
double predict(const Link& link, const PlanCost& cost, const CodecSpeed& codec);

}  // namespace cgx
