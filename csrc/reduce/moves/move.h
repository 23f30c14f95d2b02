// A collective that moves values and computes nothing: broadcast, all-gather, gather, scatter,
// all-to-all. Data, made for each call.
//
// Every rank knows what it gives to each rank, and what it gets from each; the numbers of values of
// two ranks may be unknown to a third one, so no plan covers them. The header of the first message
// of a pair says how many values the pair moves, and the receiver compares.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "codec/codec.h"
#include "reduce/engine_options.h"
#include "reduce/plan/plan.h"
#include "reduce/schedule/reducer.h"

namespace cgx {

/// Values of the call's type, one behind the other in memory.
struct Piece {
  std::byte* data = nullptr;
  size_t values = 0;
  /// Place of the first one in the call's input: of its residual and its random numbers.
  size_t first = 0;
};

/// What all ranks know of a move.
struct MoveShape {
  Operation operation = Operation::kAllToAll;
  DType dtype = DType::kUInt8;
  /// Of the tensor that all ranks share, for errors and statistics; 0 where there is none.
  size_t values = 0;
  int root = -1;
  /// raw_codec(): exact.
  std::shared_ptr<const Codec> codec;
};

struct Move {
  /// Names the call in headers, errors and logs; it has no rounds.
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Codec> codec;
  /// By rank; none: nothing goes that way. A piece without values still is a message, so that a rank
  /// that expects some learns that none will come. The own piece is copied from one to the other,
  /// exactly. A broadcast has one piece on each rank, `gives` at the root and `gets` elsewhere, in
  /// the place of the root.
  std::vector<std::optional<Piece>> gives, gets;
  /// Every rank gets the same values: gives[p] are the same memory for all p.
  bool alike = false;
};

/// Without pieces. Thread-safe.
Move make_move(const MoveShape& shape, const Topology& topology);

/// Values of a message, at most: whole granules of the codec, at least one. `bytes`: aimed at.
size_t segment_values(const Codec& codec, DType dtype, size_t bytes);

/// Makes room for an exchange of `messages` messages with so many bytes of values: a single bucket
/// may be longer than what a communicator has room for.
void make_room(const Call& call, Communicator& comm, size_t messages, size_t payload_bytes);

/// Values [first, first + count) of the call's input as a message of their own.
Chunk chunk_of(const Codec& codec, DType dtype, size_t first, size_t count);

}  // namespace cgx
