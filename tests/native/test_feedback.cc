// Error feedback in the reducers: what was sent and what the residuals hold is, together, what went
// in.
#include <algorithm>
#include <cmath>

#include "check.h"
#include "data.h"
#include "groups.h"
#include "maxmin_codec.h"

namespace cgx::native {
namespace {

// And nine ranks on one host.
const std::vector<Hosts>& more_layouts() {
  static const std::vector<Hosts> all = [] {
    std::vector<Hosts> found = layouts();
    found.push_back(Hosts(9, "a"));
    return found;
  }();
  return all;
}

// Layers of n values in all.
std::vector<Layer> layers_of(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<Layer> layers;
  for (size_t left = n; left > 0;) {
    const size_t count = std::min<size_t>(left, 1 + random(2000));
    left -= count;
    if (random(4) == 0) {
      layers.push_back({count, raw_codec()});
    } else if (random(5) == 0) {
      layers.push_back({count, make_codec(random(2) == 0 ? "bf16" : "fp16")});
    } else {
      const int64_t buckets[] = {1, 7, 64, 512};
      layers.push_back(
          {count, make_maxmin({1 + static_cast<int>(random(8)), buckets[random(4)],
                               random(2) == 0 ? Rounding::kNearest : Rounding::kStochastic,
                               random(4) == 0, 5})});
    }
  }
  if (layers.empty()) layers.push_back({0, make_maxmin({4, 64})});
  return layers;
}

// The ledger of some calls, in float64: what went in, less what came out and what is owed.
class Ledger {
 public:
  Ledger(size_t ranks, size_t n, DType residual_type)
      : type_(residual_type), sums_(n), residuals_(ranks) {
    for (auto& residual : residuals_) residual = tensor_of(std::vector<float>(n), type_);
  }

  Residual residual(int rank) { return {residuals_[static_cast<size_t>(rank)].data(), type_}; }
  Values residuals() const {
    Values all;
    for (const auto& one : residuals_) all.push_back(values_of(one, type_));
    return all;
  }

  // `first`: the place of x among the values.
  void put_in(const std::vector<float>& x, size_t first = 0) { book(x, first, 1); }
  void take_out(const std::vector<float>& x, size_t first, double times) {
    book(x, first, -times);
    ++calls_;
  }

  void check_balanced(const std::string& what) const {
    std::vector<double> left = sums_;
    double largest = largest_;
    for (const auto& residual : residuals()) {
      for (size_t i = 0; i < left.size(); ++i) {
        CHECK(std::isfinite(residual[i]), what, ": residual ", residual[i]);
        left[i] -= residual[i];
        largest = std::max(largest, std::fabs(static_cast<double>(residual[i])));
      }
    }
    // A few roundings a rank and call: of sums, and of each residual to its type.
    const double ranks = static_cast<double>(residuals_.size()), calls = calls_ + 1;
    const bool single = type_ == DType::kFloat32;
    const double residual = single ? 0x1p-24 : 0x1p-9;
    const double subnormal = single ? 0x1p-140 : 0x1p-134 * ranks * calls;
    const double allowed = (0x1p-22 * ranks + residual) * ranks * calls * largest + subnormal;
    for (size_t i = 0; i < left.size(); ++i) {
      CHECK(std::fabs(left[i]) <= allowed, what, ": value ", i, " is off by ", left[i], " of ",
            largest);
    }
  }

 private:
  void book(const std::vector<float>& x, size_t first, double times) {
    for (size_t i = 0; i < x.size(); ++i) {
      sums_[first + i] += times * static_cast<double>(x[i]);
      largest_ = std::max(largest_, std::fabs(static_cast<double>(x[i])));
    }
  }

  const DType type_;
  std::vector<double> sums_;
  Tensors residuals_;
  double largest_ = 0, calls_ = 0;
};

EngineGroup engines_for(const Hosts& hosts, Reduction reduction, uint64_t seed) {
  EngineOptions options = options_of(reduction, 9000, 3000, 30000);
  options.intra_exact = seed % 2 == 0;
  return make_engines(hosts, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
}

// One all-reduce of x; the output, which is equal on all ranks.
std::vector<float> all_reduce(EngineGroup& engines, const std::vector<Layer>& layers, DType dtype,
                              bool average, const Values& x, Ledger* ledger) {
  Tensors data;
  for (const auto& mine : x) data.push_back(tensor_of(mine, dtype));
  run_ranks(static_cast<int>(engines.size()), [&](int rank) {
    auto& mine = data[static_cast<size_t>(rank)];
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    engine.run(*engine.plan_all_reduce(layers, dtype), mine.data(), mine.data(), average,
               patience(), std::nullopt, nullptr,
               ledger != nullptr ? ledger->residual(rank) : Residual{});
  });
  for (const auto& other : data) CHECK(other == data[0], "bits differ between ranks");
  return values_of(data[0], dtype);
}

Values inputs(size_t ranks, size_t n, DType dtype, uint64_t seed) {
  return values_of(inputs_of(ranks, n, dtype, seed), dtype);
}

}  // namespace

// The reducer, the layers and the sizes of messages change from call to call, the residuals stay.
TEST(feedback_conserves_sums_over_changing_plans) {
  uint64_t seed = 0;
  for (const Hosts& hosts : more_layouts()) {
    for (DType dtype : kDTypes) {
      for (DType residual : {DType::kFloat32, DType::kBFloat16}) {
        const size_t n = ++seed % 3 == 0 ? seed % 70 : 1500 + seed % 2500;
        const bool average = seed % 2 == 0;
        const double times = average ? static_cast<double>(hosts.size()) : 1;
        Ledger ledger(hosts.size(), n, residual);
        for (size_t call = 0; call < 6; ++call) {
          const Reduction reduction = kReductions[(seed + call) % 4];
          EngineGroup engines = engines_for(hosts, reduction, seed + call);
          const auto layers = layers_of(n, seed * 10 + call);
          const auto x = inputs(hosts.size(), n, dtype, seed);
          for (const auto& mine : x) ledger.put_in(mine);
          const auto y = all_reduce(engines, layers, dtype, average, x, &ledger);
          ledger.take_out(y, 0, times);
          std::string text = str_of("call ", call, ", ", n, " ", name_of(dtype), " on");
          for (const std::string& host : hosts) text += " " + host;
          ledger.check_balanced(text + str_of(", reduction ", static_cast<int>(reduction)));
        }
      }
    }
  }
}

TEST(feedback_over_every_small_size) {
  const Hosts hosts = {"a", "a", "b", "b", "b"};
  for (Reduction reduction : kReductions) {
    EngineGroup engines = engines_for(hosts, reduction, 1);
    for (size_t n = 0; n <= 400; n += n < 20 ? 1 : 19) {
      Ledger ledger(hosts.size(), n, DType::kFloat32);
      const std::vector<Layer> layers = {{n, make_maxmin({1 + static_cast<int>(n % 8), 64})}};
      for (size_t call = 0; call < 2; ++call) {
        const auto x = inputs(hosts.size(), n, DType::kFloat32, n * 7);
        for (const auto& mine : x) ledger.put_in(mine);
        ledger.take_out(all_reduce(engines, layers, DType::kFloat32, false, x, &ledger), 0, 1);
        ledger.check_balanced(str_of(n, " values"));
      }
    }
  }
}

// Zeros as residuals change no bit of a result; a rank without a residual takes part.
TEST(feedback_begins_like_a_call_without) {
  uint64_t seed = 40;
  for (const Hosts& hosts : more_layouts()) {
    for (Reduction reduction : kReductions) {
      const auto dtype = static_cast<DType>(++seed % 3);
      const size_t n = 3000;
      const auto layers = layers_of(n, seed);
      const auto x = inputs(hosts.size(), n, dtype, seed);
      Ledger ledger(hosts.size(), n, DType::kFloat32);
      EngineGroup with = engines_for(hosts, reduction, seed);
      EngineGroup without = engines_for(hosts, reduction, seed);
      CHECK(all_reduce(with, layers, dtype, seed % 2 == 0, x, &ledger) ==
            all_reduce(without, layers, dtype, seed % 2 == 0, x, nullptr));
    }
  }
}

TEST(feedback_of_exact_values_is_paid_at_once) {
  for (const Hosts& hosts : more_layouts()) {
    for (Reduction reduction : kReductions) {
      const size_t n = 2500;
      EngineGroup engines = engines_for(hosts, reduction, 0);
      Ledger ledger(hosts.size(), n, DType::kFloat32);
      const Values zeros(hosts.size(), std::vector<float>(n));
      for (size_t rank = 0; rank < hosts.size(); ++rank) {
        auto* owed = static_cast<float*>(ledger.residual(static_cast<int>(rank)).data);
        for (size_t i = 0; i < n; ++i) owed[i] = static_cast<float>(i + rank);
      }
      const auto y =
          all_reduce(engines, {{n, raw_codec()}}, DType::kFloat32, false, zeros, &ledger);
      const auto ranks = static_cast<float>(hosts.size());
      for (size_t i = 0; i < n; ++i) {
        CHECK(y[i] == ranks * static_cast<float>(i) + ranks * (ranks - 1) / 2);
      }
      for (const auto& residual : ledger.residuals()) {
        for (float left : residual) CHECK(left == 0, "residual ", left);
      }
    }
  }
}

// A bucket that holds a NaN or an Inf leaves its residuals as they were, on every rank that encodes
// it; all others go on.
TEST(feedback_survives_values_that_are_not_finite) {
  for (const Hosts& hosts : more_layouts()) {
    for (Reduction reduction : kReductions) {
      for (float bad : {__builtin_nanf(""), __builtin_inff()}) {
        const size_t n = 1000;
        EngineGroup engines = engines_for(hosts, reduction, 1);
        Ledger ledger(hosts.size(), n, DType::kFloat32);
        const std::vector<Layer> layers = {{n, make_maxmin({2, 100})}};
        auto x = inputs(hosts.size(), n, DType::kFloat32, 6);
        all_reduce(engines, layers, DType::kFloat32, false, x, &ledger);
        const Values before = ledger.residuals();
        x[0][250] = bad;
        const auto y = all_reduce(engines, layers, DType::kFloat32, false, x, &ledger);
        CHECK(!std::isfinite(y[250]));
        const Values after = ledger.residuals();
        for (size_t rank = 0; rank < hosts.size(); ++rank) {
          for (size_t i = 0; i < n; ++i) CHECK(std::isfinite(after[rank][i]));
        }
        const size_t kept = hosts.size() == 1 ? 250 : 200;  // one rank rounds nothing
        CHECK(after[0][kept] == before[0][kept], after[0][kept], " was ", before[0][kept]);
      }
    }
  }
}

TEST(feedback_in_reduce_scatter_and_all_gather) {
  uint64_t seed = 0;
  for (const Hosts& hosts : more_layouts()) {
    for (DType dtype : kDTypes) {
      for (size_t shard : {1, 100, 1501}) {
        ++seed;
        const size_t size = hosts.size();
        const auto codec =
            seed % 4 == 0 ? raw_codec() : make_maxmin({1 + static_cast<int>(seed % 8), 64});
        const bool average = seed % 2 == 0;
        EngineGroup engines = engines_for(hosts, Reduction::kAuto, seed / 2);
        Ledger scattered(size, shard * size, DType::kFloat32);
        std::vector<Ledger> gathered(size, Ledger(1, shard, DType::kFloat32));
        for (size_t call = 0; call < 3; ++call) {
          const auto x = inputs(size, shard * size, dtype, seed + call);
          Tensors shards(size, std::vector<std::byte>(shard * size_of(dtype)));
          Tensors whole(size, std::vector<std::byte>(shard * size * size_of(dtype)));
          run_ranks(static_cast<int>(size), [&](int rank) {
            const auto r = static_cast<size_t>(rank);
            Engine& engine = *engines.ranks[r];
            const auto input = tensor_of(x[r], dtype);
            const auto scatter = engine.plan_shards(Operation::kReduceScatter, shard, codec, dtype);
            engine.run(*scatter, input.data(), shards[r].data(), average, patience(), std::nullopt,
                       nullptr, scattered.residual(rank));
            const auto gather = engine.plan_shards(Operation::kAllGather, shard, codec, dtype);
            engine.run(*gather, shards[r].data(), whole[r].data(), false, patience(), std::nullopt,
                       nullptr, gathered[r].residual(0));
          });
          for (size_t r = 0; r < size; ++r) {
            CHECK(whole[r] == whole[0]);
            const auto y = values_of(shards[r], dtype);
            const auto all = values_of(whole[0], dtype);
            scattered.put_in(x[r]);
            scattered.take_out(y, r * shard, average ? static_cast<double>(size) : 1);
            gathered[r].put_in(y);
            const auto from = all.begin() + static_cast<ptrdiff_t>(r * shard);
            gathered[r].take_out({from, from + static_cast<ptrdiff_t>(shard)}, 0, 1);
          }
        }
        const std::string text = str_of("shards of ", shard, " ", name_of(dtype), " on ", size);
        scattered.check_balanced("reduce-scatter, " + text);
        for (const Ledger& one : gathered) one.check_balanced("all-gather, " + text);
      }
    }
  }
}

// Long exact tensors, from tensor to tensor.
TEST(feedback_of_direct_transfers) {
  for (DType dtype : kDTypes) {
    const size_t n = 5000;
    EngineOptions options = options_of(Reduction::kAuto, 9000, 3000, 30000);
    options.direct_from = 1;
    options.direct_chunk = 2000;
    EngineGroup engines =
        make_engines({"a", "a", "a"}, options, CommunicatorKind::kRelay, CommunicatorKind::kRelay);
    const std::vector<Layer> layers = {{n, raw_codec()}};
    CHECK(engines.ranks[0]->plan_all_reduce(layers, dtype)->algorithm == Algorithm::kDirect);
    Ledger ledger(3, n, DType::kFloat32);
    for (size_t call = 0; call < 4; ++call) {
      const auto x = inputs(3, n, dtype, call * 6);
      for (const auto& mine : x) ledger.put_in(mine);
      ledger.take_out(all_reduce(engines, layers, dtype, call % 2 == 0, x, &ledger), 0,
                      call % 2 == 0 ? 3 : 1);
    }
    ledger.check_balanced(name_of(dtype));
  }
}

}  // namespace cgx::native
