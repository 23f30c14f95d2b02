// Receives messages that several ranks send at once, each with its own values.
#pragma once

#include <cstddef>
#include <vector>

#include "reduce/schedule/channel.h"
#include "reduce/schedule/stages.h"

namespace cgx {

/// Receives what each of `sources` sends in a round, in their order, and decodes it to `output`: on
/// the CPU one message while the next travels, on a GPU all of them by one launch.
/// chunk_of(rank): the chunk that a source sends, alive until the end; an empty one is not sent.
/// seen(rank, payload) is called with every message before it is released, and with nullptr where
/// nothing is sent.
template <typename ChunkOf, typename Seen>
void decode_arrivals(Call& call, Channel& channel, const std::vector<int>& sources, size_t round,
                     const View& output, const ChunkOf& chunk_of, const Seen& seen) {
  const bool at_once = call.stages.on_device();
  std::vector<ReceivedChunk> arrived;
  for (int p : sources) {
    const Chunk& chunk = chunk_of(p);
    const std::byte* payload = chunk.empty() ? nullptr : channel.receive(p, round);
    seen(p, payload);
    if (payload == nullptr) continue;
    if (at_once) {
      arrived.push_back({&chunk, payload});
      continue;
    }
    call.stages.decode_chunk(call, chunk, payload, output);
    channel.release(p);
  }
  if (!at_once) return;
  call.stages.decode(call, arrived, output);
  for (int p : sources) {
    if (!chunk_of(p).empty()) channel.release(p);
  }
}

}  // namespace cgx
