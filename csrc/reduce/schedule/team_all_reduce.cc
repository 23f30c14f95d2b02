#include "reduce/schedule/team_all_reduce.h"

#include "base/error.h"

namespace cgx {

std::unique_ptr<TeamAllReduce> make_team_all_reduce(Algorithm algorithm, Call& call,
                                                    Channel& channel) {
  switch (algorithm) {
    case Algorithm::kOneShot:
      return make_one_shot(call, channel);
    case Algorithm::kScatterReduceAllGather:
      return make_scatter_reduce_all_gather(call, channel);
    case Algorithm::kRing:
      return make_ring(call, channel);
    case Algorithm::kDirect:
      break;
  }
  throw Error("unknown algorithm");
}

int team_stages(Algorithm algorithm, int size) {
  switch (algorithm) {
    case Algorithm::kOneShot:
      return 2;
    case Algorithm::kScatterReduceAllGather:
      return 3;
    case Algorithm::kRing:
      return 2 * size - 1;
    case Algorithm::kDirect:
      break;
  }
  return 0;
}

size_t team_depth(Algorithm algorithm, int size, int in_flight) {
  switch (algorithm) {
    case Algorithm::kOneShot:
      // While a message is awaited, two more are on the way: the link does not rest when a rank is
      // late.
      return in_flight >= 4 ? 3 : in_flight > 2 ? 2 : 1;
    case Algorithm::kScatterReduceAllGather:
      // Each of two rounds has a message of both kinds under way.
      return in_flight >= 4 ? 3 : 1;
    case Algorithm::kRing:
      // A round less than there are stages: rounds go in pairs, see for_each_step().
      return in_flight >= 3 && size > 1 ? 2 : 1;
    case Algorithm::kDirect:
      break;
  }
  return 1;
}

void put_in_bundle(Call& call, const TeamRound& round, size_t index, const std::byte* payload) {
  if (round.bundle == nullptr) return;
  const std::vector<Chunk>& chunks = round.shard->chunks;
  size_t place = 0;
  if (chunks.size() == 1) {
    place = index * bundle_stride(chunks.front());
  } else {
    for (size_t i = 0; i < index; ++i) place += bundle_stride(chunks[i]);
  }
  const Chunk& chunk = chunks.size() == 1 ? chunks.front() : chunks[index];
  call.stages.copy(round.bundle + place, payload, chunk.payload_bytes);
}

}  // namespace cgx
