// Moves of the engine on the memory of a (stub) GPU: the bytes of moves on the host, over every
// communicator of a GPU that has headers.
#include <memory>
#include <vector>

#include "check.h"
#include "data.h"
#include "gpu_groups.h"
#include "groups.h"
#include "maxmin_codec.h"
#include "reduce/moves/plans.h"
#include "reduce/moves/room.h"

namespace cgx::native {
namespace {

constexpr Operation kGpuMoves[] = {Operation::kBroadcast, Operation::kAllGather, Operation::kGather,
                                   Operation::kScatter, Operation::kAllToAll};

struct MoveRun {
  Operation operation;
  size_t values;
  int root;
  std::shared_ptr<const Codec> codec;
};

// One rank's move between `given`, a piece for each rank, and `got`, one of each; a broadcast has one
// piece in both, `got`.
Move move_of(const MoveRun& run, MovePlans& plans, const Engine& engine, std::byte* given,
             std::byte* got) {
  const int rank = engine.rank();
  const size_t n = run.values, bytes = n * size_of(DType::kFloat32);
  Move move =
      plans.make({run.operation, DType::kFloat32, n, run.root, run.codec}, engine.topology());
  move.alike = run.operation == Operation::kAllGather;
  const auto root = static_cast<size_t>(run.root);
  if (run.operation == Operation::kBroadcast) {
    (rank == run.root ? move.gives : move.gets)[root] = {got, n};
    return move;
  }
  for (int peer = 0; peer < engine.size(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    const bool gives = run.operation != Operation::kGather || peer == run.root;
    const bool gets = run.operation != Operation::kScatter || peer == run.root;
    const bool is_root = rank == run.root;
    if (gives && (run.operation != Operation::kScatter || is_root)) {
      const size_t place = move.alike ? 0 : at;
      move.gives[at] = {given + place * bytes, n, place * n};
    }
    if (gets && (run.operation != Operation::kGather || is_root)) {
      move.gets[at] = {got + at * bytes, n, at * n};
    }
  }
  return move;
}

void check_moves(const Hosts& hosts, Way intra, Way cross, EngineOptions options, uint64_t seed) {
  std::vector<MoveRun> runs;
  Random random(seed);
  const auto codec = make_maxmin({.bits = 4, .bucket_size = 64});
  for (Operation operation : kGpuMoves) {
    const bool encodes = operation == Operation::kBroadcast || operation == Operation::kAllToAll;
    for (size_t n : {size_t{0}, size_t{1}, 1 + random(400), 1 + random(6000)}) {
      const int root = static_cast<int>(random(hosts.size()));
      runs.push_back({operation, n, root, raw_codec()});
      if (encodes && n > 0) runs.push_back({operation, n, root, codec});
    }
  }
  EngineGroup expected =
      make_engines(hosts, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  GpuGroup gpus = make_gpus(hosts, options, intra, cross);
  run_ranks(static_cast<int>(hosts.size()), [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const device::InContext here(Driver::get(), kContext);
    Engine &host = *expected.ranks[r], &gpu = *gpus.ranks[r];
    MovePlans plans;
    for (const MoveRun& run : runs) {
      const size_t all = run.values * hosts.size();
      const std::vector<std::byte> given = tensor_of(values(all, 0, seed + r), DType::kFloat32);
      std::vector<std::byte> from = given, got = given;
      const OnDevice gpu_from(gpus.gpus[r]->queue, given), gpu_got(gpus.gpus[r]->queue, given);
      for (int turn = 0; turn < 2; ++turn) {
        host.run_move(move_of(run, plans, host, from.data(), got.data()), patience());
        gpu.run_move(move_of(run, plans, gpu, gpu_from.data(), gpu_got.data()), patience());
      }
      CHECK(gpu_got.read() == got, name_of(run.operation), " of ", run.values, ", rank ", rank,
            ", seed ", seed);
    }
  });
}

EngineOptions short_messages(bool grows) {
  EngineOptions options = options_of(Reduction::kAuto, 9000, 3000, 30000);
  if (grows) return options;
  options.intra.wanted = options.intra.limit = options.intra.most;
  return options;
}

}  // namespace

TEST(gpu_moves_reach_the_right_rank) {
  uint64_t seed = 1;
  for (const Hosts& hosts : layouts()) {
    const Topology topology(hosts);
    if (topology.two_levels()) continue;
    for (Way way : {Way::kStaged, Way::kIpc}) {
      const bool across = topology.host_count() > 1;
      if (way == Way::kIpc && across) continue;
      check_moves(hosts, way, way, short_messages(way == Way::kStaged), ++seed);
    }
  }
}

TEST(moves_fit_into_messages_that_cannot_grow) {
  const EngineOptions fixed = short_messages(false), grows = short_messages(true);
  EngineOptions blocks = grows;
  blocks.intra.wanted = 1 << 20;
  CHECK(bytes_inside(blocks, 8, 1 << 20) + 8 * Messages::kPayloadOffset < blocks.intra.wanted);
  CHECK(bytes_inside(blocks, 8, 1 << 20) > blocks.intra.wanted - 2048);
  CHECK(bytes_inside(blocks, 1 << 20, 1 << 20) == blocks.intra.wanted / 2);
  CHECK(bytes_inside(blocks, 8, 1000) == 1000);
  CHECK(bytes_inside(fixed, 8, 1000) == 1000);
  CHECK(bytes_inside(fixed, 8, 1 << 20) + 8 * Messages::kPayloadOffset < fixed.intra.most);
  const auto codec = make_maxmin({.bits = 8, .bucket_size = 4000});
  check_bucket(*codec, DType::kFloat32, grows, 8);
  check_bucket(*codec, DType::kFloat32, fixed, 1);
  const std::string text =
      error_of<ConfigError>([&] { check_bucket(*codec, DType::kFloat32, fixed, 8); });
  CHECK(contains(text, "one bucket of 4000 values"), text);
}

TEST(equal_moves_share_a_plan) {
  const Topology topology(Hosts{"a", "a"});
  MovePlans plans;
  const MoveShape shape{Operation::kBroadcast, DType::kFloat32, 10, 1, make_codec("fp16")};
  MoveShape other = shape;
  other.codec = make_codec("bf16");
  CHECK(plans.make(shape, topology).plan == plans.make(shape, topology).plan);
  CHECK(plans.make(shape, topology).plan != plans.make(other, topology).plan);
  other = shape;
  other.root = 0;
  CHECK(plans.make(shape, topology).plan != plans.make(other, topology).plan);
}

}  // namespace cgx::native
