// Chunks that are split over threads: the bits of one thread.
#include <atomic>
#include <iterator>
#include <thread>

#include "base/parallel.h"
#include "check.h"
#include "data.h"
#include "groups.h"
#include "maxmin_codec.h"
#include "reduce/schedule/host_stages.h"

namespace cgx::native {
namespace {

class Threads final : public Parallel {
 public:
  Threads(int count, std::atomic<int>& runs) : count_(count), runs_(runs) {}
  int threads() const override { return count_; }
  void run(size_t parts, const std::function<void(size_t)>& body) const override {
    ++runs_;
    std::vector<std::thread> threads;
    for (size_t part = 1; part < parts; ++part) threads.emplace_back([&, part] { body(part); });
    body(0);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  const int count_;
  std::atomic<int>& runs_;
};

struct Outcome {
  std::vector<std::vector<std::byte>> results, residuals;  // of each rank
};

// Two calls: messages of the second one lie where those of the first one were.
Outcome reduce(const std::vector<Layer>& layers, DType dtype, Reduction reduction, int ranks,
               int threads, bool feedback, std::atomic<int>& runs) {
  size_t count = 0;
  for (const Layer& layer : layers) count += layer.count;
  EngineOptions options = options_of(reduction, 8 << 20, 1 << 20, 4 << 20);
  options.nonfinite = NonFinite::kRaise;
  EngineGroup engines =
      make_engines(std::vector<std::string>(static_cast<size_t>(ranks), "a"), options,
                   CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  Outcome outcome;
  for (int rank = 0; rank < ranks; ++rank) {
    outcome.results.push_back(tensor_of(values(count, 0, static_cast<uint64_t>(rank) + 1), dtype));
    outcome.residuals.push_back(tensor_of(std::vector<float>(count), DType::kFloat32));
    if (threads > 1) {
      engines.ranks[static_cast<size_t>(rank)]->use(
          std::make_unique<HostStages>(std::make_unique<Threads>(threads, runs)));
    }
  }
  run_ranks(ranks, [&](int rank) {
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    auto& mine = outcome.results[static_cast<size_t>(rank)];
    Residual residual;
    if (feedback) {
      residual = {outcome.residuals[static_cast<size_t>(rank)].data(), DType::kFloat32};
    }
    const auto plan = engine.plan_all_reduce(layers, dtype);
    for (int call = 0; call < 2; ++call) {
      engine.run(*plan, mine.data(), mine.data(), true, patience(), std::nullopt, nullptr,
                 residual);
    }
  });
  return outcome;
}

}  // namespace

TEST(threads_change_no_bit) {
  const auto four = make_maxmin({4, 512, Rounding::kNearest});
  const auto three = make_maxmin({3, 100, Rounding::kStochastic, true, 7});
  const std::vector<std::vector<Layer>> tensors = {
      {{500001, raw_codec()}},
      {{500001, four}},
      {{231072, three}, {70001, raw_codec()}, {5, four}, {200000, four}},
      {{170001, make_codec("rotated")}, {231072, make_codec("trellis")}, {9, raw_codec()}},
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DType dtype = kDTypes[i % std::size(kDTypes)];
    for (Reduction reduction : {Reduction::kOneShot, Reduction::kScatterReduceAllGather}) {
      for (bool feedback : {false, true}) {
#if defined(__SANITIZE_THREAD__)
        // Slow there: each tensor with each reduction once, half of them with feedback.
        if (feedback != ((i + (reduction == Reduction::kOneShot ? 0 : 1)) % 2 == 0)) continue;
#endif
        const int ranks = reduction == Reduction::kOneShot ? 2 : 3;
        std::atomic<int> runs{0};
        const auto alone = reduce(tensors[i], dtype, reduction, ranks, 1, feedback, runs);
        CHECK(runs == 0, "one thread");
        const auto shared = reduce(tensors[i], dtype, reduction, ranks, 5, feedback, runs);
        CHECK(runs > 0, "five threads");
        const auto where = str_of("tensor ", i, ", ", name_of(dtype), feedback ? ", feedback" : "");
        for (const auto& mine : shared.results) CHECK(mine == alone.results[0], where);
        CHECK(shared.residuals == alone.residuals, where);
      }
    }
  }
}

TEST(threads_are_left_alone_by_small_chunks) {
  std::atomic<int> runs{0};
  reduce({{100000, raw_codec()}}, DType::kFloat32, Reduction::kOneShot, 2, 4, false, runs);
  CHECK(runs == 0, "100000 values");
}

}  // namespace cgx::native
