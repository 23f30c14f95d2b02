#include "reduce/schedule/team_all_reduce.h"
#include "reduce/schedule/two_levels.h"

namespace cgx {
namespace {

class AllReduce {
 public:
  AllReduce(Call& call, void* data)
      : call_(call),
        levels_(call),
        hosts_(static_cast<int>(levels_.hosts)),
        data_{static_cast<std::byte*>(data), 0, call.plan.dtype, false, true},
        algorithm_(team_algorithm(call.plan.algorithm)),
        stages_(algorithm_.stages(hosts_)),
        depth_(algorithm_.depth(hosts_, kCrossInFlight)) {
    if (levels_.member) team_ = algorithm_.make(call, *levels_.cross);
  }

  void run() {
    const size_t rounds = call_.plan.rounds.size();
    for_each_step(rounds, stages_, depth_,
                  [&](int stage, size_t number) { announce(stage, number); });
    levels_.begin();
    for_each_step(rounds, stages_, depth_, [&](int stage, size_t number) {
      if (stage == 0) levels_.scatter_inside(number, data_, partial(number));
      if (team_) team_->run(stage, team_round(number));
      if (stage == 0 && number == 0 && rounds > 1 && levels_.cross) levels_.cross->look_at_first();
      if (stage == stages_ - 1) gather_inside(number);
    });
  }

 private:
  void announce(int stage, size_t number) {
    if (stage == 0) levels_.announce_scatter(number);
    if (team_) team_->announce(stage, number, levels_.shard(number, levels_.local));
    if (stage == stages_ - 1 && levels_.intra) {
      for (int team : levels_.other_members) {
        levels_.intra->will_receive(team, bundle_bytes(levels_.shard(number, team), hosts_), false);
      }
    }
  }

  // Memory of the host's sum of this rank's shard: the tensor itself if it is of that type.
  View partial(size_t number) {
    if (!levels_.intra || !levels_.member) return data_;
    const DType type = call_.plan.partial_dtype();
    if (call_.plan.dtype == type) {
      View sums = data_;
      sums.plus_residual = false;  // the sums have it
      return sums;
    }
    const Chunk& chunk = levels_.shard(number, levels_.local).intra;
    if (chunk.empty()) return data_;
    std::byte* sums = call_.work.buffer(number % depth_, chunk.values * size_of(type));
    return {sums, chunk.runs.front().offset, type};
  }

  std::byte* bundle(size_t number) {
    if (!levels_.intra) return nullptr;
    return call_.work.buffer(depth_ + number % depth_,
                             bundle_bytes(levels_.shard(number, levels_.local), hosts_));
  }

  TeamRound team_round(size_t number) {
    return {number, &levels_.shard(number, levels_.local), partial(number), data_, bundle(number)};
  }

  // Members give the encoded result of their shard to the ranks of their host.
  void gather_inside(size_t number) {
    if (!levels_.intra) return;
    Channel& intra = *levels_.intra;
    const size_t own =
        team_ ? bundle_bytes(levels_.shard(number, levels_.local), hosts_) : size_t{0};
    if (own > 0) {
      call_.stages.copy(intra.open_broadcast(own), bundle(number), own);
      intra.post(number);
    }
    for (int team : levels_.other_members) {
      const Shard& shard = levels_.shard(number, team);
      if (bundle_bytes(shard, hosts_) == 0) continue;
      take_bundle(shard, intra.receive(team, number));
      intra.release(team);
    }
  }

  void take_bundle(const Shard& shard, const std::byte* bundle) {
    if (shard.chunks.size() == 1) {  // one-shot: the contributions of all hosts
      payloads_.clear();
      for (size_t host = 0; host < levels_.hosts; ++host) {
        payloads_.push_back(bundle + host * bundle_stride(shard.chunks.front()));
      }
      call_.stages.sum(call_, shard.chunks.front(),
                       {payloads_, {}, data_, nullptr, call_.divisor()});
      return;
    }
    bundled_.clear();
    for (const Chunk& chunk : shard.chunks) {
      bundled_.push_back({&chunk, bundle});
      bundle += bundle_stride(chunk);
    }
    call_.stages.decode(call_, bundled_, data_);
  }

  Call& call_;
  TwoLevels levels_;
  const int hosts_;
  const View data_;
  const TeamAlgorithm& algorithm_;
  const int stages_;
  const size_t depth_;
  std::unique_ptr<TeamAllReduce> team_;  // null on ranks that are in none
  std::vector<const std::byte*> payloads_;
  std::vector<ReceivedChunk> bundled_;
};

}  // namespace

void all_reduce_two_levels(Call& call, void* data) {
  call.stages.check_input(call, data, call.plan.values);
  AllReduce(call, data).run();
}

}  // namespace cgx
