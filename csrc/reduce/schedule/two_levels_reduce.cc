// Reduce over hosts of several ranks: every host combines its values, each team reduces its shard
// to the root's host, and the team's member there gives the result to the root.
#include "reduce/schedule/team_all_reduce.h"
#include "reduce/schedule/two_levels.h"

namespace cgx {
namespace {

class RootedReduce {
 public:
  RootedReduce(Call& call, const void* input, void* output)
      : call_(call),
        levels_(call),
        at_root_host_(levels_.host == call.topology.host_of(call.plan.root)),
        is_root_(call.identity.rank == call.plan.root),
        input_{static_cast<std::byte*>(const_cast<void*>(input)), 0, call.plan.dtype},
        output_{static_cast<std::byte*>(output), 0, call.plan.dtype},
        algorithm_(reduce_team_algorithm(call.plan.algorithm)),
        stages_(algorithm_.stages(static_cast<int>(levels_.hosts))),
        depth_(algorithm_.depth(static_cast<int>(levels_.hosts), kCrossInFlight)) {
    if (levels_.member) team_ = algorithm_.make(call, *levels_.cross);
  }

  void run() {
    const size_t rounds = call_.plan.rounds.size();
    for_each_step(rounds, stages_, depth_,
                  [&](int stage, size_t number) { announce(stage, number); });
    levels_.begin();
    for_each_step(rounds, stages_, depth_, [&](int stage, size_t number) {
      if (stage == 0) levels_.scatter_inside(number, input_, partial(number));
      if (team_) {
        team_->run(stage, {number, &shard(number, levels_.local), partial(number), result(number),
                           nullptr});
      }
      if (stage == 0 && number == 0 && rounds > 1 && levels_.cross) levels_.cross->look_at_first();
      if (stage == stages_ - 1) deliver(number);
    });
  }

 private:
  const Shard& shard(size_t number, int team) const { return levels_.shard(number, team); }

  void announce(int stage, size_t number) {
    if (stage == 0) levels_.announce_scatter(number);
    if (team_) team_->announce(stage, number, shard(number, levels_.local));
    if (stage != stages_ - 1 || !is_root_ || !levels_.intra) return;
    for (int team : levels_.other_members) {
      levels_.intra->will_receive(team, shard(number, team).intra.payload_bytes, false);
    }
  }

  // Work memory for the values of this rank's shard.
  View room(size_t buffer, size_t number, DType type) {
    const Chunk& chunk = shard(number, levels_.local).intra;
    if (chunk.empty()) return input_;
    std::byte* memory = call_.work.buffer(buffer, chunk.values * size_of(type));
    return {memory, chunk.runs.front().offset, type};
  }

  // What this host has of this rank's shard. Tensors of other ranks than the root stay as they are.
  View partial(size_t number) {
    if (!levels_.intra || !levels_.member) return input_;
    return room(number % depth_, number, call_.plan.partial_dtype());
  }

  View result(size_t number) {
    if (is_root_) return output_;
    if (!at_root_host_) return {};
    return room(depth_ + number % depth_, number, call_.plan.dtype);
  }

  void deliver(size_t number) {
    if (!at_root_host_ || !levels_.intra) return;
    Channel& intra = *levels_.intra;
    if (is_root_) {
      for (int team : levels_.other_members) {
        const Chunk& chunk = shard(number, team).intra;
        if (chunk.empty()) continue;
        call_.stages.decode_chunk(call_, chunk, intra.receive(team, number), output_);
        intra.release(team);
      }
      return;
    }
    if (!levels_.member || shard(number, levels_.local).intra.empty()) return;
    const Chunk& mine = shard(number, levels_.local).intra;
    const auto to = static_cast<size_t>(call_.topology.local_of(call_.plan.root));
    bytes_.assign(static_cast<size_t>(intra.size()), 0);
    bytes_[to] = mine.payload_bytes;
    std::byte* message = intra.open(bytes_)[to];
    call_.stages.encode_chunk(call_, mine, result(number), Stage::kIntra, message);
    intra.post(number);
  }

  Call& call_;
  TwoLevels levels_;
  const bool at_root_host_, is_root_;
  const View input_, output_;
  const TeamAlgorithm& algorithm_;
  const int stages_;
  const size_t depth_;
  std::unique_ptr<TeamAllReduce> team_;  // null on ranks that are in none
  std::vector<size_t> bytes_;
};

}  // namespace

void reduce_two_levels(Call& call, const void* input, void* output) {
  call.stages.check_input(call, input, call.plan.values);
  RootedReduce(call, input, output).run();
}

}  // namespace cgx
