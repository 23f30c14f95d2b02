#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "reduce/moves/moves.h"
#include "reduce/moves/room.h"
#include "reduce/moves/side.h"
#include "reduce/schedule/stages.h"

namespace cgx {
namespace {

// Bytes aimed at for an exchange over shared memory: few enough that what one rank has written is
// still in the cache when another one reads it. On a GPU longer ones cost fewer launches.
constexpr size_t kExchangeBytes = size_t{1} << 20;

// One communicator serves all ranks, or two do: inside the host, and between hosts.
class Pairwise {
 public:
  Pairwise(Call& call, const Move& move, const EngineOptions& options) : call_(call), move_(move) {
    const size_t across = options.segment_bytes * static_cast<size_t>(call.plan.size);
    const size_t aim = call.stages.on_device() ? options.intra.wanted : kExchangeBytes;
    const size_t inside = bytes_inside(options, static_cast<size_t>(call.plan.size), aim);
    std::vector<int> everyone(static_cast<size_t>(call.plan.size));
    std::iota(everyone.begin(), everyone.end(), 0);
    const Topology& topology = call.topology;
    if (!call.plan.two_levels) {
      const bool hosts = topology.host_count() > 1;
      near_.emplace(call, move, call.links.only(), everyone, hosts, false, hosts ? across : inside);
      return;
    }
    if (call.links.intra != nullptr) {
      const std::vector<int>& members = topology.host(topology.host_of(call.identity.rank));
      near_.emplace(call, move, *call.links.intra, members, false, false, inside);
    }
    far_.emplace(call, move, *call.links.mesh, everyone, true, true, across);
  }

  void run() {
    size_t rounds = 0, ahead = 3;
    each([&](Side& side) {
      side.begin();
      rounds = std::max(rounds, side.rounds());
      ahead = std::min(ahead, static_cast<size_t>(side.in_flight()) / 2);
    });
    if (rounds == 0) return keep_own();
    // One exchange more is on its way while one is read, where the communicator takes them.
    for (size_t round = 0; round < rounds + ahead - 1; ++round) {
      if (round < rounds) each([&](Side& side) { side.send(round); });
      if (round == 0) {
        if (rounds > 1) each([](Side& side) { side.look_at_first(); });
        keep_own();
      }
      if (round + 1 >= ahead) each([&](Side& side) { side.receive(round + 1 - ahead); });
    }
    each([](Side& side) { side.finish(); });
  }

 private:
  template <typename Work>
  void each(const Work& work) {
    if (near_) work(*near_);
    if (far_) work(*far_);
  }

  void keep_own() {
    const auto rank = static_cast<size_t>(call_.identity.rank);
    const std::optional<Piece>& from = move_.gives[rank];
    const std::optional<Piece>& to = move_.gets[rank];
    if (!from || !to || from->data == to->data) return;
    call_.stages.copy(to->data, from->data, to->values * size_of(move_.plan->dtype));
  }

  Call& call_;
  const Move& move_;
  std::optional<Side> near_, far_;
};

}  // namespace

void move_pairwise(Call& call, const Move& move, const EngineOptions& options) {
  Pairwise(call, move, options).run();
}

}  // namespace cgx
