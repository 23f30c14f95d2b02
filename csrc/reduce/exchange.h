// Message handling shared by the reducers: headers, flags, statistics, receiving from several
// peers.
#pragma once

#include <cstddef>
#include <vector>

#include "reduce/reducer.h"

namespace cgx {

/// MessageHeader flags that this rank must put on its messages.
uint8_t flags_of(const Call& call);

/// Opens one message for all peers; counts it once per peer.
std::byte* open_broadcast(Call& call, const Chunk& chunk);

/// Writes the headers and posts what was opened.
void post(Call& call);

/// Waits for the message of `peer` that carries `chunk`, checks it, notes its flags; returns its
/// payload.
const std::byte* receive(Call& call, int peer, size_t round, const Chunk& chunk);

void expect(Call& call, const std::vector<int>& peers);

/// All ranks but this one.
std::vector<int> other_ranks(const Call& call);

/// Under NonFinite::kRaise: looks for a NaN or Inf in this rank's input before anything is sent.
void check_input(Call& call, const void* data, size_t values);

}  // namespace cgx
