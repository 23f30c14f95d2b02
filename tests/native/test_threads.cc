// Chunks that are split over threads: the bits of one thread.
#include <atomic>
#include <iterator>
#include <thread>

#include "base/parallel.h"
#include "check.h"
#include "data.h"
#include "groups.h"
#include "maxmin_codec.h"

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

std::vector<std::vector<std::byte>> reduce(const std::vector<Layer>& layers, DType dtype,
                                           Reduction reduction, int ranks, int threads,
                                           std::atomic<int>& runs) {
  size_t count = 0;
  for (const Layer& layer : layers) count += layer.count;
  EngineOptions options = options_of(reduction, 8 << 20, 1 << 20, 4 << 20);
  options.nonfinite = NonFinite::kRaise;
  EngineGroup engines =
      make_engines(std::vector<std::string>(static_cast<size_t>(ranks), "a"), options,
                   CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  std::vector<std::vector<std::byte>> data;
  for (int rank = 0; rank < ranks; ++rank) {
    data.push_back(tensor_of(values(count, 0, static_cast<uint64_t>(rank) + 1), dtype));
    if (threads > 1) {
      engines.ranks[static_cast<size_t>(rank)]->use(std::make_unique<Threads>(threads, runs));
    }
  }
  run_ranks(ranks, [&](int rank) {
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    auto& mine = data[static_cast<size_t>(rank)];
    const auto plan = engine.plan_all_reduce(layers, dtype);
    engine.run(*plan, mine.data(), mine.data(), true, patience());
  });
  return data;
}

}  // namespace

TEST(threads_change_no_bit) {
  const auto four = make_maxmin({4, 512, Rounding::kNearest});
  const auto three = make_maxmin({3, 100, Rounding::kStochastic, true, 7});
  const std::vector<std::vector<Layer>> tensors = {
      {{500001, raw_codec()}},
      {{500001, four}},
      {{231072, three}, {70001, raw_codec()}, {5, four}, {200000, four}},
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DType dtype = kDTypes[i % std::size(kDTypes)];
    for (Reduction reduction : {Reduction::kOneShot, Reduction::kScatterReduceAllGather}) {
      const int ranks = reduction == Reduction::kOneShot ? 2 : 3;
      std::atomic<int> runs{0};
      const auto alone = reduce(tensors[i], dtype, reduction, ranks, 1, runs);
      CHECK(runs == 0, "one thread");
      const auto shared = reduce(tensors[i], dtype, reduction, ranks, 5, runs);
      CHECK(runs > 0, "five threads");
      for (const auto& mine : shared) CHECK(mine == alone[0], "tensor ", i, ", ", name_of(dtype));
    }
  }
}

TEST(threads_are_left_alone_by_small_chunks) {
  std::atomic<int> runs{0};
  reduce({{100000, raw_codec()}}, DType::kFloat32, Reduction::kOneShot, 2, 4, runs);
  CHECK(runs == 0, "100000 values");
}

}  // namespace cgx::native
