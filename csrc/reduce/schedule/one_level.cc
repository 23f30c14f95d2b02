// Reductions among ranks that are all alike: one host, or hosts of one rank each.
#include <algorithm>
#include <numeric>

#include "reduce/schedule/arrivals.h"
#include "reduce/schedule/channel.h"
#include "reduce/schedule/pipeline.h"
#include "reduce/schedule/reducer.h"
#include "reduce/schedule/stages.h"
#include "reduce/schedule/team_all_reduce.h"

namespace cgx {
namespace {

Channel open_channel(Call& call) {
  std::vector<int> members(static_cast<size_t>(call.plan.size));
  std::iota(members.begin(), members.end(), 0);
  return {call, call.links.only(), std::move(members), call.topology.host_count() > 1};
}

const Shard& shard_of(const Call& call, size_t round) {
  return call.plan.rounds[round].shards.front();
}

// Runs stage 0 (send) and 1 (receive) of all rounds.
template <typename Send, typename Receive>
void send_and_receive(Call& call, Channel& channel, Send send, Receive receive) {
  const size_t rounds = call.plan.rounds.size();
  for_each_step(rounds, 2, channel.in_flight() > 2 ? 2 : 1, [&](int stage, size_t round) {
    if (stage == 1) return receive(round);
    send(round);
    if (round == 0 && rounds > 1) channel.look_at_first();
  });
}

void run_team(Call& call, const TeamAlgorithm& algorithm, const View& source, const View& output) {
  Channel channel = open_channel(call);
  const auto team = algorithm.make(call, channel);
  const int stages = algorithm.stages(channel.size());
  const size_t depth = algorithm.depth(channel.size(), channel.in_flight());
  const size_t rounds = call.plan.rounds.size();
  for_each_step(rounds, stages, depth, [&](int stage, size_t round) {
    team->announce(stage, round, shard_of(call, round));
  });
  channel.begin();
  for_each_step(rounds, stages, depth, [&](int stage, size_t round) {
    team->run(stage, {round, &shard_of(call, round), source, output, nullptr});
    if (stage == 0 && round == 0 && rounds > 1) channel.look_at_first();
  });
}

}  // namespace

void all_reduce(Call& call, void* data) {
  call.stages.check_input(call, data, call.plan.values);
  const View view{static_cast<std::byte*>(data), 0, call.plan.dtype, false, true};
  run_team(call, team_algorithm(call.plan.algorithm), view, view);
}

void reduce(Call& call, const void* input, void* output) {
  call.stages.check_input(call, input, call.plan.values);
  const View in{static_cast<std::byte*>(const_cast<void*>(input)), 0, call.plan.dtype};
  const View out{static_cast<std::byte*>(output), 0, call.plan.dtype};
  run_team(call, reduce_team_algorithm(call.plan.algorithm), in, out);
}

View shards_view(const Call& call, const void* input) {
  View view{static_cast<std::byte*>(const_cast<void*>(input)), 0, call.plan.dtype, false, true};
  if (call.input_parts != nullptr) {
    view.parts = call.input_parts;
    view.part_values = std::max<size_t>(call.plan.values / static_cast<size_t>(call.plan.size), 1);
  }
  return view;
}

void reduce_scatter(Call& call, const void* input, void* output) {
  Channel channel = open_channel(call);
  const DType dtype = call.plan.dtype;
  const auto rank = static_cast<size_t>(channel.rank());
  const size_t shard = call.plan.values / static_cast<size_t>(channel.size());
  const View in = shards_view(call, input);
  const View out{static_cast<std::byte*>(output), shard * rank, dtype};
  call.stages.check_shards(call, in);
  auto chunks = [&](size_t round) -> const std::vector<Chunk>& {
    return shard_of(call, round).chunks;
  };
  for (size_t round = 0; round < call.plan.rounds.size(); ++round) {
    for (int p : channel.peers()) {
      channel.will_receive(p, chunks(round)[rank].payload_bytes, round == 0);
    }
  }
  channel.begin();
  std::vector<size_t> bytes(static_cast<size_t>(channel.size()));
  std::vector<const std::byte*> payloads(bytes.size());
  std::vector<ChunkToSend> outgoing;
  send_and_receive(
      call, channel,
      [&](size_t round) {
        for (int p : channel.peers()) {
          bytes[static_cast<size_t>(p)] = chunks(round)[static_cast<size_t>(p)].payload_bytes;
        }
        const std::vector<std::byte*>& messages = channel.open(bytes);
        outgoing.clear();
        for (int p : channel.peers()) {
          const auto to = static_cast<size_t>(p);
          outgoing.push_back({&chunks(round)[to], messages[to]});
        }
        call.stages.encode(call, outgoing, in, Stage::kContribution);
        channel.post(round);
      },
      [&](size_t round) {
        payloads.assign(payloads.size(), nullptr);  // nullptr: own values
        for (int p : channel.sources()) {
          payloads[static_cast<size_t>(p)] = channel.receive(p, round);
        }
        call.stages.sum(call, chunks(round)[rank],
                        {payloads, in, out, nullptr, call.divisor(), /*final=*/true,
                         /*own_index=*/-1, Feedback::kSet});
        for (int p : channel.peers()) channel.release(p);
      });
}

void all_gather(Call& call, const void* input, void* output) {
  Channel channel = open_channel(call);
  const DType dtype = call.plan.dtype;
  const auto rank = static_cast<size_t>(channel.rank());
  const size_t shard = call.plan.values / static_cast<size_t>(channel.size());
  const View in{static_cast<std::byte*>(const_cast<void*>(input)), shard * rank, dtype, false,
                true};
  const View out{static_cast<std::byte*>(output), 0, dtype};
  // Exact values only move.
  if (call.plan.compressed || call.residual.base != nullptr) {
    call.stages.check_input(call, input, shard);
  }
  auto chunk = [&](size_t round, int p) -> const Chunk& {
    return shard_of(call, round).chunks[static_cast<size_t>(p)];
  };
  for (size_t round = 0; round < call.plan.rounds.size(); ++round) {
    for (int p : channel.peers()) {
      channel.will_receive(p, chunk(round, p).payload_bytes, round == 0);
    }
  }
  channel.begin();
  send_and_receive(
      call, channel,
      [&](size_t round) {
        const Chunk& own = chunk(round, channel.rank());
        std::byte* message = channel.open_broadcast(own.payload_bytes);
        call.stages.encode_chunk(call, own, in, Stage::kContribution, message, /*final=*/true);
        call.stages.decode_chunk(call, own, message, out);
        channel.post(round);
      },
      [&](size_t round) {
        decode_arrivals(
            call, channel, channel.sources(), round, out,
            [&](int p) -> const Chunk& { return chunk(round, p); }, [](int, const std::byte*) {});
      });
}

}  // namespace cgx
