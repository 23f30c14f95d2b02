// The engine on all algorithms and host layouts: inside the float64 bound, equal bits on all ranks,
// communicators and levels.
#include <atomic>

#include "check.h"
#include "codec/ops/level.h"
#include "data.h"
#include "groups.h"
#include "maxmin_codec.h"
#include "oracle.h"

namespace cgx::native {
namespace {

struct Case {
  Hosts hosts;
  Reduction reduction = Reduction::kAuto;
  DType dtype = DType::kFloat32;
  std::vector<Layer> layers;
  bool average = false;
  bool intra_exact = true;
  uint64_t seed = 0;

  std::string describe() const {
    std::string text = str_of("hosts");
    for (const std::string& host : hosts) text += " " + host;
    text += str_of(", reduction ", static_cast<int>(reduction), ", ", name_of(dtype),
                   average ? ", AVG" : "", intra_exact ? "" : ", codec inside hosts");
    for (const Layer& layer : layers) {
      text += str_of(", ", layer.count, " ", layer.codec->describe());
    }
    return text;
  }
  size_t count() const {
    size_t n = 0;
    for (const Layer& layer : layers) n += layer.count;
    return n;
  }
  Values inputs() const { return values_of(inputs_of(hosts.size(), count(), dtype, seed), dtype); }
};

// Small messages, so that every tensor takes several rounds.
EngineGroup engines_for(const Case& test, CommunicatorKind intra, CommunicatorKind cross) {
  EngineOptions options = options_of(test.reduction, 9000, 3000, 30000);
  options.intra_exact = test.intra_exact;
  options.checksum = test.seed % 9 == 1;
  return make_engines(test.hosts, options, intra, cross);
}

Tensors all_reduce(EngineGroup& engines, const Case& test) {
  Tensors data;
  for (const auto& x : test.inputs()) data.push_back(tensor_of(x, test.dtype));
  run_ranks(static_cast<int>(engines.size()), [&](int rank) {
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    auto& mine = data[static_cast<size_t>(rank)];
    const auto plan = engine.plan_all_reduce(test.layers, test.dtype);
    engine.run(*plan, mine.data(), mine.data(), test.average, patience());
  });
  return data;
}

std::vector<Layer> plan_layers_of(uint64_t seed) {
  Random random(seed);
  std::vector<Layer> layers;
  const size_t many = 1 + random(3);
  for (size_t i = 0; i < many; ++i) {
    const size_t count = random(8) == 0 ? 0 : 1 + random(2500);
    if (random(4) == 0) {
      layers.push_back({count, raw_codec()});
      continue;
    }
    if (random(5) == 0) {
      layers.push_back({count, make_codec(random(2) == 0 ? "bf16" : "fp16")});
      continue;
    }
    const int64_t buckets[] = {1, 7, 64, 100, 512};
    layers.push_back(
        {count, make_maxmin({1 + static_cast<int>(random(8)), buckets[random(5)],
                             random(2) == 0 ? Rounding::kNearest : Rounding::kStochastic,
                             random(4) == 0, 5})});
  }
  return layers;
}

}  // namespace

TEST(reduce_all_layouts_and_algorithms) {
  uint64_t seed = 0;
  for (const Hosts& hosts : layouts()) {
    for (Reduction reduction : kReductions) {
      for (DType dtype : kDTypes) {
        for (int repeat = 0; repeat < 4; ++repeat) {
          ++seed;
          const Case test{hosts,         reduction,     dtype, plan_layers_of(seed),
                          seed % 3 == 0, seed % 2 == 0, seed};
          const CommunicatorKind cross =
              seed % 4 == 0 ? CommunicatorKind::kInProcess : CommunicatorKind::kRelay;
          EngineGroup engines = engines_for(
              test, seed % 2 == 0 ? CommunicatorKind::kInProcess : CommunicatorKind::kShm, cross);
          const auto plan = engines.ranks[0]->plan_all_reduce(test.layers, dtype);
          const Tensors result = all_reduce(engines, test);
          for (const auto& other : result) CHECK(other == result[0], test.describe());
          try {
            check_inside(values_of(result[0], dtype),
                         expected_all_reduce(test.inputs(), test.layers, dtype, plan->algorithm,
                                             Topology(hosts), test.intra_exact, test.average));
          } catch (const CheckFailed& failed) {
            throw CheckFailed(str_of(test.describe(), ": ", failed.what()));
          }
        }
      }
    }
  }
}

TEST(reduce_gives_equal_bits_on_every_communicator_and_level) {
  const std::string before = cpu_level();
  std::vector<std::string> levels;
  for (std::string rest = cpu_levels() + ","; !rest.empty(); rest.erase(0, rest.find(',') + 1)) {
    levels.push_back(rest.substr(0, rest.find(',')));
  }
  uint64_t seed = 900;
  for (const Hosts& hosts : layouts()) {
    for (Reduction reduction : kReductions) {
      const auto dtype = static_cast<DType>(++seed % 3);
      const Case test{hosts, reduction, dtype, plan_layers_of(seed), false, seed % 2 == 0, seed};
      Tensors first;
      for (size_t k = 0; k < std::max<size_t>(3, levels.size()); ++k) {
        const CommunicatorKind intra[] = {CommunicatorKind::kInProcess, CommunicatorKind::kShm,
                                          CommunicatorKind::kLazyRelay};
        const CommunicatorKind cross[] = {CommunicatorKind::kInProcess, CommunicatorKind::kRelay,
                                          CommunicatorKind::kLazyRelay};
        set_cpu_level(levels[k % levels.size()]);
        EngineGroup engines = engines_for(test, intra[k % 3], cross[k % 3]);
        const Tensors result = all_reduce(engines, test);
        if (k == 0) first = result;
        CHECK(result == first, test.describe(), " at level ", cpu_level());
      }
    }
  }
  set_cpu_level(before);
}

TEST(reduce_scatter_and_all_gather) {
  uint64_t seed = 0;
  for (const Hosts& hosts : layouts()) {
    for (DType dtype : kDTypes) {
      for (size_t shard : {1, 100, 1501}) {
        ++seed;
        const size_t size = hosts.size();
        const int64_t bucket = seed % 5 == 0 ? 1 : 64;  // of one value: longer than exact ones
        const auto codec =
            seed % 4 == 0 ? raw_codec() : make_maxmin({1 + static_cast<int>(seed % 8), bucket});
        const std::vector<Layer> whole(size, Layer{shard, codec});
        const Case test{hosts, Reduction::kAuto, dtype, whole, seed % 2 == 0, seed % 3 != 0, seed};
        EngineGroup engines =
            engines_for(test, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
        const auto inputs = test.inputs();
        Tensors shards(size, std::vector<std::byte>(shard * size_of(dtype)));
        Tensors gathered(size, std::vector<std::byte>(shard * size * size_of(dtype)));
        run_ranks(static_cast<int>(size), [&](int rank) {
          const auto r = static_cast<size_t>(rank);
          Engine& engine = *engines.ranks[r];
          const auto input = tensor_of(inputs[r], dtype);
          const auto scatter = engine.plan_shards(Operation::kReduceScatter, shard, codec, dtype);
          engine.run(*scatter, input.data(), shards[r].data(), test.average, patience());
          const auto gather = engine.plan_shards(Operation::kAllGather, shard, codec, dtype);
          engine.run(*gather, shards[r].data(), gathered[r].data(), false, patience());
        });
        // One-shot has the roundings of a reduce-scatter.
        std::vector<float> all;
        for (const auto& part : shards) {
          for (float x : values_of(part, dtype)) all.push_back(x);
        }
        check_inside(all, expected_all_reduce(inputs, whole, dtype, Algorithm::kOneShot,
                                              Topology(hosts), test.intra_exact, test.average));
        for (const auto& one : gathered) {
          CHECK(one == gathered[0]);
          const Estimate exact(all);
          check_inside(values_of(one, dtype),
                       size == 1 ? exact : rounded(encoded(exact, whole, dtype), dtype));
        }
      }
    }
  }
}

TEST(reduce_scatter_of_codes_longer_than_their_values) {
  // Buckets of one value: what travels inside hosts is longer than the values themselves.
  EngineOptions options = options_of(Reduction::kAuto, 9000, 30000, 60000);
  options.intra_exact = false;
  EngineGroup engines = make_engines({"a", "a", "b"}, options, CommunicatorKind::kInProcess,
                                     CommunicatorKind::kRelay);
  const auto codec = make_maxmin({.bits = 8, .bucket_size = 1});
  run_ranks(3, [&](int rank) {
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    const auto plan = engine.plan_shards(Operation::kReduceScatter, 5000, codec, DType::kFloat32);
    const std::vector<float> input(3 * 5000, 1.5f);
    std::vector<float> output(5000);
    engine.run(*plan, input.data(), output.data(), false, patience());
    for (float y : output) CHECK(y == 4.5f);
  });
}

TEST(reduce_many_calls_and_numbers_that_wrap) {
  const Case test{{"a", "a", "b"},
                  Reduction::kAuto,
                  DType::kFloat32,
                  {{700, make_maxmin({.bits = 3, .rounding = Rounding::kStochastic})}}};
  EngineGroup engines = engines_for(test, CommunicatorKind::kShm, CommunicatorKind::kRelay);
  for (auto& engine : engines.ranks) engine->set_sequence(~uint64_t{0} - 10);
  for (int call = 0; call < 20; ++call) {
    const Tensors result = all_reduce(engines, test);
    for (const auto& other : result) CHECK(other == result[0], call);
  }
  CHECK(engines.ranks[0]->sequence() == 9);
}

TEST(reduce_mismatches_are_named_on_every_rank) {
  const auto four = make_maxmin(), two = make_maxmin({.bits = 2});
  struct Other {
    std::vector<Layer> layers;
    DType dtype;
    bool average;
    uint64_t sequence;
  };
  const Other same{{{3000, four}}, DType::kFloat32, false, 0};
  const std::vector<Other> others = {{{{3000, two}}, DType::kFloat32, false, 0},
                                     {{{3001, four}}, DType::kFloat32, false, 0},
                                     {{{3000, raw_codec()}}, DType::kFloat32, false, 0},
                                     {{{1500, four}, {1500, four}}, DType::kFloat32, false, 0},
                                     {{{3000, four}}, DType::kBFloat16, false, 0},
                                     {{{3000, four}}, DType::kFloat32, true, 0},
                                     {{{3000, four}}, DType::kFloat32, false, 1}};
  for (const Hosts& hosts : {Hosts{"a", "a", "a"}, Hosts{"a", "b", "c"}, Hosts{"a", "a", "b"}}) {
    for (Reduction reduction : kReductions) {
      for (const Other& other : others) {
        const EngineOptions options = options_of(reduction, 9000, 3000, 30000);
        EngineGroup engines =
            make_engines(hosts, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
        run_ranks(3, [&](int rank) {
          const Other& mine = rank == 1 ? other : same;
          Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
          engine.set_sequence(mine.sequence);
          std::vector<std::byte> data(4 * 3001);
          const auto plan = engine.plan_all_reduce(mine.layers, mine.dtype);
          // Over a relay some ranks only learn that the others have stopped.
          auto run = [&] { engine.run(*plan, data.data(), data.data(), mine.average, patience()); };
          error_of<Error>(run);
          CHECK(engine.failure());
          error_of<Error>(run);  // the first cause again
        });
        bool named = false;
        for (auto& engine : engines.ranks) {
          named = named || engine->failure()->kind == FailureKind::kMismatch;
        }
        CHECK(named, hosts[1], hosts[2], " reduction ", static_cast<int>(reduction));
      }
    }
  }
}

TEST(reduce_a_rank_that_leaves_or_aborts) {
  for (const Hosts& hosts : {Hosts{"a", "a", "a"}, Hosts{"a", "b", "c"}, Hosts{"a", "a", "b"}}) {
    for (Reduction reduction : kReductions) {
      for (bool leaves : {false, true}) {
        Case test{hosts, reduction, DType::kFloat32, {{5000, make_maxmin()}}};
        EngineGroup engines = engines_for(test, CommunicatorKind::kShm, CommunicatorKind::kRelay);
        run_ranks(3, [&](int rank) {
          Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
          std::vector<std::byte> data(4 * 5000);
          const auto plan = engine.plan_all_reduce(test.layers, test.dtype);
          const int calls = rank == 2 ? 3 : 100000;
          auto run = [&] {
            for (int call = 0; call < calls; ++call) {
              engine.run(*plan, data.data(), data.data(), false, patience());
            }
          };
          if (rank == 2) {
            run();
            if (leaves) {
              engine.close();
            } else {
              engine.abort("enough");
            }
          } else {
            error_of<Error>(run);
          }
        });
      }
    }
  }
}

TEST(reduce_watched_from_another_thread) {
  // What a watchdog and the callers' threads ask while a collective runs.
  for (const Hosts& hosts : {Hosts{"a", "a", "a"}, Hosts{"a", "a", "b"}}) {
    const Case test{hosts, Reduction::kAuto, DType::kFloat32, {{2000, make_maxmin()}}};
    EngineGroup engines = engines_for(test, CommunicatorKind::kShm, CommunicatorKind::kRelay);
    constexpr uint64_t kCalls = 40;
    std::atomic<int> running{3};
    run_ranks(6, [&](int thread) {
      Engine& engine = *engines.ranks[static_cast<size_t>(thread % 3)];
      if (thread < 3) {
        std::vector<float> data(2000, 1.0f);
        const auto plan = engine.plan_all_reduce(test.layers, test.dtype);
        for (uint64_t call = 1; call <= kCalls; ++call) {
          engine.run(*plan, data.data(), data.data(), true, patience());
        }
        --running;
        return;
      }
      for (uint64_t call = 1; running > 0; ++call) {
        CHECK(!engine.failure() && engine.ended_peers(0).empty());
        if (call <= kCalls) CHECK(!engine.compare_call({call, {call * 3, 7}}));
        engine.stats().snapshot();
      }
    });
  }
}

TEST(reduce_nonfinite_raise_leaves_the_group_usable) {
  for (const Hosts& hosts : {Hosts{"a", "a", "a"}, Hosts{"a", "a", "b"}}) {
    EngineOptions options = options_of(Reduction::kAuto, 9000, 3000, 30000);
    options.nonfinite = NonFinite::kRaise;
    EngineGroup engines =
        make_engines(hosts, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
    run_ranks(3, [&](int rank) {
      Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
      const auto plan = engine.plan_all_reduce({{5000, make_maxmin()}}, DType::kFloat32);
      for (int call = 0; call < 6; ++call) {
        std::vector<float> data(5000, 1.0f);
        const bool bad = call % 2 == 1;
        if (bad && rank == call % 3) data[4321] = INFINITY;
        auto run = [&] { engine.run(*plan, data.data(), data.data(), false, patience()); };
        if (bad) {
          error_of<NonFiniteError>(run);
        } else {
          run();
          CHECK(data[0] == 3 && data[4999] == 3);
        }
      }
    });
  }
}

}  // namespace cgx::native
