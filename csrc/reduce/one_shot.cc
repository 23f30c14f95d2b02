#include "reduce/exchange.h"
#include "reduce/reducer.h"
#include "reduce/stages.h"

namespace cgx {

void one_shot(Call& call, void* data) {
  const int rank = call.comm.rank();
  const View view{static_cast<std::byte*>(data), 0};
  const std::vector<int> peers = other_ranks(call);
  check_input(call, data, call.plan.values);
  for (size_t round = 0; round < call.plan.rounds.size(); ++round) {
    const Chunk& chunk = call.plan.rounds[round].chunks.front();
    expect(call, peers);
    std::byte* message = open_broadcast(call, chunk);
    std::byte* own = message + Communicator::kPayloadOffset;
    encode_chunk(call, chunk, view, Stage::kContribution, own);
    write_header(message, call.identity, round, chunk.payload_bytes, flags_of(call));
    post(call);

    std::vector<const std::byte*> payloads(static_cast<size_t>(call.comm.size()));
    for (int p = 0; p < call.comm.size(); ++p) {
      // The own message stays readable until the next open(): what the others decode is decoded
      // here too.
      payloads[static_cast<size_t>(p)] = p == rank ? own : receive(call, p, round, chunk);
    }
    sum_chunk(call, chunk, payloads, view, view, nullptr);
    for (int p : peers) call.comm.release(p);
  }
}

}  // namespace cgx
