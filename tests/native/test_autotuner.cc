// The autotuner over real engines, a thread for every rank: all take the same decisions whatever
// their clocks say, and anybody may ask meanwhile.
#include <atomic>
#include <thread>

#include "check.h"
#include "groups.h"
#include "maxmin_codec.h"
#include "reduce/tuning/autotuner.h"

namespace cgx::native {
namespace {

std::shared_ptr<const Codec> maxmin(int bits) {
  return make_maxmin({.bits = bits, .bucket_size = 64});
}

std::shared_ptr<const Codec> bf16() { return make_codec("bf16"); }

std::vector<std::unique_ptr<Autotuner>> tuners_of(EngineGroup& group) {
  std::vector<std::unique_ptr<Autotuner>> all;
  for (auto& engine : group.ranks) {
    all.push_back(std::make_unique<Autotuner>(*engine, bf16(), nullptr));
  }
  return all;
}

// One call; which decision it took.
Decision run_call(Engine& engine, Autotuner& tuner, size_t values, int bits, uint64_t number) {
  const auto asked =
      engine.plan_all_reduce({{values, maxmin(bits)}, {7, raw_codec()}}, DType::kFloat32);
  std::vector<float> data(values + 7, 1.0F);
  const Autotuner::TunedPlan tuned = tuner.decide(asked, patience(), number);
  engine.run(*tuned.plan, data.data(), data.data(), false, patience(), number);
  // Made up, and another time on every rank and in every call.
  const auto rank = static_cast<uint64_t>(engine.rank());
  const auto begin = static_cast<int64_t>(number * 10'000'000 + rank * 13'000);
  const auto length = static_cast<int64_t>((number * 7 + values + rank * 13) % 31);
  tuner.ran(tuned, {begin, begin + 1 + 100'000 * length});
  for (float one : data) CHECK(one == static_cast<float>(engine.size()), "a sum is ", one);
  return tuned.turn.decision;
}

}  // namespace

TEST(autotuner_ranks_take_the_same_decisions) {
  const std::vector<std::vector<std::string>> layouts = {
      {"a", "a"}, {"a", "b", "c"}, {"a", "a", "b"}, {"a", "b", "a", "b"}};
  for (const auto& hosts : layouts) {
    EngineGroup group = make_engines(hosts, options_of(Reduction::kAuto, 1 << 16, 1 << 14, 1 << 20),
                                     CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
    auto tuners = tuners_of(group);
    std::vector<std::vector<Decision>> taken(group.size());
    std::atomic<bool> done{false};
    std::thread asks([&] {
      while (!done) {
        for (auto& tuner : tuners) {
          for (const TuningRow& row : tuner->report()) CHECK(row.calls <= 330, row.calls, " calls");
        }
      }
    });
    run_ranks(static_cast<int>(group.size()), [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      for (uint64_t call = 0; call < 330; ++call) {
        const size_t values = call % 11 == 0 ? 3000 : 500;
        taken[r].push_back(run_call(*group.ranks[r], *tuners[r], values, 4, call));
      }
    });
    done = true;
    asks.join();
    for (const auto& one : taken) CHECK(one == taken.front(), "ranks took different decisions");
    const size_t classes = tuners.front()->report().size();
    CHECK(classes == 2, classes, " classes");
    uint64_t calls = 0;
    for (uint64_t count : tuners.front()->calls()) calls += count;
    CHECK(calls == 330, calls, " calls were counted");
  }
}

TEST(autotuner_tables_stay_small) {
  EngineGroup group =
      make_engines({"a", "a"}, options_of(Reduction::kAuto, 1 << 16, 1 << 14, 1 << 20),
                   CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  auto tuners = tuners_of(group);
  run_ranks(2, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    for (uint64_t call = 0; call < 1300; ++call) {
      const int bits = static_cast<int>(call % 8) + 1;
      const size_t values = 16 + call * 37;
      run_call(*group.ranks[r], *tuners[r], values, bits, call);
    }
  });
  CHECK(tuners[0]->report().size() <= 256, "too many classes");
}

TEST(autotuner_without_peers_or_codecs_measures_nothing) {
  EngineGroup group = make_engines({"a"}, options_of(Reduction::kAuto, 1 << 16, 1 << 14, 1 << 20),
                                   CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  Autotuner alone(*group.ranks[0], bf16(), nullptr);
  CHECK(run_call(*group.ranks[0], alone, 500, 4, 0) == Decision::kAsked, "chose for itself");
  CHECK(alone.report().empty(), "measured");
}

TEST(autotuner_an_aborted_peer_ends_measuring) {
  EngineGroup group =
      make_engines({"a", "b"}, options_of(Reduction::kAuto, 1 << 16, 1 << 14, 1 << 20),
                   CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  auto tuners = tuners_of(group);
  run_ranks(2, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    if (rank == 1) {
      group.ranks[r]->abort("a test");
      return;
    }
    const std::string text =
        error_of<Error>([&] { run_call(*group.ranks[r], *tuners[r], 500, 4, 0); });
    CHECK(contains(text, "rank 1 was aborted"), text);
  });
}

}  // namespace cgx::native
