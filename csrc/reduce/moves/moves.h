// Schedules of moves.
//
//   move                     one host                        between hosts
//   all-gather, gather,      every pair at once: each rank   the same, for each pair of ranks; pairs
//   scatter, all-to-all      sends to the next one first     of one host use its shared memory
//   broadcast                all read the root's messages    one rank per host: a binomial tree for
//                                                            short values, a chain for long ones
//   barrier                  all tell all                    one rank per host, after its host and
//                                                            before it
//
// Long values are cut into segments, so that a rank reads one while another writes the next.
#pragma once

#include "reduce/engine_options.h"
#include "reduce/moves/move.h"
#include "reduce/schedule/reducer.h"

namespace cgx {

/// Runs a move of any operation but broadcast and barrier.
void move_pairwise(Call& call, const Move& move, const EngineOptions& options);

/// The root's values go to all ranks. Encoded, all ranks keep what is decoded, the root as well.
void broadcast(Call& call, const Move& move, const EngineOptions& options);

/// Returns when all ranks have called it.
void barrier(Call& call);

}  // namespace cgx
