#include "reduce/exchange.h"
#include "reduce/reducer.h"
#include "reduce/stages.h"

namespace cgx {
namespace {

// Sends to every owner this rank's contribution to its chunk; returns the payloads of this rank's
// own chunk, by rank (nullptr for this rank itself). The caller releases the peers when it has read
// them.
std::vector<const std::byte*> scatter(Call& call, size_t round, const View& input,
                                      const std::vector<int>& peers) {
  const std::vector<Chunk>& chunks = call.plan.rounds[round].chunks;
  const Chunk& own = chunks[static_cast<size_t>(call.comm.rank())];
  if (!own.empty()) expect(call, peers);
  std::vector<size_t> bytes_to(chunks.size(), 0);
  for (int p : peers) {
    const auto to = static_cast<size_t>(p);
    bytes_to[to] = chunks[to].message_bytes();
    if (bytes_to[to] > 0) {
      call.stats.bytes_sent += bytes_to[to] + call.comm.frame_bytes();
      call.stats.messages_sent += 1;
    }
  }
  std::vector<std::byte*> messages;
  {
    ScopedTimer timer(call.stats.transfer_ns);
    call.comm.open(bytes_to, messages, call.deadline);
  }
  for (int p : peers) {
    const auto to = static_cast<size_t>(p);
    if (chunks[to].empty()) continue;
    encode_chunk(call, chunks[to], input, Stage::kContribution,
                 messages[to] + Communicator::kPayloadOffset);
    write_header(messages[to], call.identity, round, chunks[to].payload_bytes, flags_of(call));
  }
  post(call);
  std::vector<const std::byte*> payloads(chunks.size(), nullptr);
  if (!own.empty()) {
    for (int p : peers) payloads[static_cast<size_t>(p)] = receive(call, p, round, own);
  }
  return payloads;
}

void release(Call& call, const std::vector<int>& peers) {
  for (int p : peers) call.comm.release(p);
}

// Takes the chunks of all other owners into `output`.
void gather(Call& call, size_t round, const View& output, const std::vector<int>& peers) {
  const std::vector<Chunk>& chunks = call.plan.rounds[round].chunks;
  for (int p : peers) {
    const Chunk& chunk = chunks[static_cast<size_t>(p)];
    if (chunk.empty()) continue;
    decode_chunk(call, chunk, receive(call, p, round, chunk), output);
    call.comm.release(p);
  }
}

std::vector<int> owners(const Call& call, size_t round, const std::vector<int>& peers) {
  std::vector<int> ranks;
  for (int p : peers) {
    if (!call.plan.rounds[round].chunks[static_cast<size_t>(p)].empty()) ranks.push_back(p);
  }
  return ranks;
}

}  // namespace

void scatter_reduce_all_gather(Call& call, void* data) {
  const View view{static_cast<std::byte*>(data), 0};
  const std::vector<int> peers = other_ranks(call);
  check_input(call, data, call.plan.values);
  for (size_t round = 0; round < call.plan.rounds.size(); ++round) {
    const Chunk& own = call.plan.rounds[round].chunks[static_cast<size_t>(call.comm.rank())];
    const std::vector<const std::byte*> payloads = scatter(call, round, view, peers);
    if (!own.empty()) {
      std::byte* message = open_broadcast(call, own);
      sum_chunk(call, own, payloads, view, view, message + Communicator::kPayloadOffset);
      write_header(message, call.identity, round, own.payload_bytes, flags_of(call));
      release(call, peers);
      post(call);
    }
    expect(call, owners(call, round, peers));
    gather(call, round, view, peers);
  }
}

void reduce_scatter(Call& call, const void* input, void* output) {
  const View in{static_cast<std::byte*>(const_cast<void*>(input)), 0};
  const size_t shard = call.plan.values / static_cast<size_t>(call.comm.size());
  const View out{static_cast<std::byte*>(output), shard * static_cast<size_t>(call.comm.rank())};
  const std::vector<int> peers = other_ranks(call);
  check_input(call, input, call.plan.values);
  for (size_t round = 0; round < call.plan.rounds.size(); ++round) {
    const Chunk& own = call.plan.rounds[round].chunks[static_cast<size_t>(call.comm.rank())];
    const std::vector<const std::byte*> payloads = scatter(call, round, in, peers);
    sum_chunk(call, own, payloads, in, out, nullptr);
    release(call, peers);
  }
}

void all_gather(Call& call, const void* input, void* output) {
  const size_t shard = call.plan.values / static_cast<size_t>(call.comm.size());
  const View in{static_cast<std::byte*>(const_cast<void*>(input)),
                shard * static_cast<size_t>(call.comm.rank())};
  const View out{static_cast<std::byte*>(output), 0};
  const std::vector<int> peers = other_ranks(call);
  check_input(call, input, shard);
  for (size_t round = 0; round < call.plan.rounds.size(); ++round) {
    const Chunk& own = call.plan.rounds[round].chunks[static_cast<size_t>(call.comm.rank())];
    expect(call, peers);
    std::byte* message = open_broadcast(call, own);
    std::byte* payload = message + Communicator::kPayloadOffset;
    encode_chunk(call, own, in, Stage::kContribution, payload);
    write_header(message, call.identity, round, own.payload_bytes, flags_of(call));
    decode_chunk(call, own, payload, out);
    post(call);
    gather(call, round, out, peers);
  }
}

}  // namespace cgx
