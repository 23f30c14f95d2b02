// Reductions of every type and op: right on every layout, algorithm and communicator.
#include <algorithm>
#include <limits>

#include "check.h"
#include "groups.h"
#include "ops_oracle.h"
#include "reduce/schedule/combine.h"

namespace cgx::native {
namespace {

std::string text_of(const OpCase& test, size_t n, size_t ranks) {
  return str_of(name_of(test.dtype), " ", test.average ? "AVG" : name_of(test.combine), ", ", n,
                " values, ", ranks, " ranks");
}

// All-reduce, reduce and reduce-scatter of n values each, on every rank.
void check_all(Engine& engine, const OpCase& test, size_t n, uint64_t seed, bool shards) {
  const auto ranks = static_cast<size_t>(engine.size());
  const auto rank = static_cast<size_t>(engine.rank());
  const std::string what = text_of(test, n, ranks);
  const auto input = op_input(test, n, seed, rank);
  const auto expected = op_result(test, n, seed, ranks);

  auto data = input;
  const auto all = engine.plan_all_reduce({{n, raw_codec()}}, test.dtype, test.combine);
  engine.run(*all, data.data(), data.data(), test.average, patience());
  CHECK(data == expected, "all-reduce, ", name_of(all->algorithm), ": ", what);

  const int root = static_cast<int>(seed % ranks);
  const bool in_place = seed % 2 == 0;
  data = input;
  std::vector<std::byte> apart(data.size(), std::byte{0x55});
  const auto untouched = apart;
  const auto reduce = engine.plan_reduce(n, test.dtype, test.combine, root);
  engine.run(*reduce, data.data(), in_place ? data.data() : apart.data(), test.average, patience());
  const bool is_root = engine.rank() == root;
  CHECK((in_place ? data : apart) == (is_root    ? expected
                                      : in_place ? input
                                                 : untouched),
        "reduce, ", name_of(reduce->algorithm), ": ", what);
  if (!in_place) CHECK(data == input, "reduce: ", what);

  if (!shards) return;
  const size_t whole = n * ranks;
  data = op_input(test, whole, seed, rank);
  const auto sums = op_result(test, whole, seed, ranks);
  apart.resize(n * size_of(test.dtype));
  const auto scatter =
      engine.plan_shards(Operation::kReduceScatter, n, raw_codec(), test.dtype, test.combine);
  std::byte* out = in_place ? data.data() + rank * apart.size() : apart.data();
  // As one tensor, or each shard for itself.
  std::vector<const void*> parts;
  for (size_t i = 0; i < ranks; ++i) parts.push_back(data.data() + i * apart.size());
  if (seed % 3 == 0) {
    engine.run(*scatter, data.data(), out, test.average, patience());
  } else {
    engine.run(*scatter, parts[rank], out, test.average, patience(), std::nullopt, nullptr, {},
               std::nullopt, parts.data());
  }
  const std::vector<std::byte> got(out, out + apart.size());
  const auto mine = sums.begin() + static_cast<std::ptrdiff_t>(rank * apart.size());
  CHECK(std::equal(got.begin(), got.end(), mine), "reduce-scatter: ", what);
}

// Of every case, sizes that are others for every case.
void check_group(const Hosts& hosts, Reduction reduction, CommunicatorKind intra,
                 CommunicatorKind cross, uint64_t seed, size_t direct_from = 0) {
  EngineOptions options = options_of(reduction, 9000, 3000, 30000);
  options.direct_from = direct_from;
  options.direct_chunk = 1024;
  options.checksum = direct_from == 0 && seed % 3 == 0;
  EngineGroup engines = make_engines(hosts, options, intra, cross);
  run_ranks(static_cast<int>(hosts.size()), [&](int rank) {
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    uint64_t number = seed * 1000;
    for (const OpCase& test : op_cases()) {
      for (size_t n : {number % 401, number % 4 == 0 ? 2500 + number % 7 : number % 8}) {
        check_all(engine, test, n, number, n < 500);
      }
      number += 37;
    }
  });
}

}  // namespace

TEST(ops_combine_every_size) {
  for (const OpCase& test : op_cases()) {
    for (size_t n = 0; n <= 400; ++n) {
      const size_t ranks = 2 + n % 4;
      // At odd addresses, and in place of any input.
      Tensors moved;
      std::vector<const std::byte*> in;
      for (size_t rank = 0; rank < ranks; ++rank) {
        const auto x = op_input(test, n, n, rank);
        moved.emplace_back(x.size() + 1);
        std::copy(x.begin(), x.end(), moved.back().begin() + 1);
        in.push_back(moved.back().data() + 1);
      }
      const size_t target = n % ranks;
      std::byte* out = moved[target].data() + 1;
      const float divisor = test.average ? static_cast<float>(ranks) : 1.0F;
      combine(test.combine, test.dtype, in, n, divisor, out);
      const auto expected = op_result(test, n, n, ranks);
      CHECK(std::equal(expected.begin(), expected.end(), out), text_of(test, n, ranks));
    }
  }
}

TEST(ops_combine_long_pieces) {
  for (const OpCase& test : op_cases()) {
    for (size_t ranks : {2, 3, 9}) {
      const size_t n = 8192 / size_of(real_of(test.dtype)) + 3;
      Tensors inputs;
      std::vector<const std::byte*> in;
      for (size_t rank = 0; rank < ranks; ++rank) inputs.push_back(op_input(test, n, 5, rank));
      for (const auto& one : inputs) in.push_back(one.data());
      const float divisor = test.average ? static_cast<float>(ranks) : 1.0F;
      combine(test.combine, test.dtype, in, n, divisor, inputs[1].data());
      CHECK(inputs[1] == op_result(test, n, 5, ranks), text_of(test, n, ranks));
    }
  }
}

TEST(ops_nan_wins_and_is_one) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), one = 1;
  uint64_t odd_nan = 0xfff8000000001234u;
  for (Combine op : {Combine::kSum, Combine::kMin, Combine::kMax, Combine::kProduct}) {
    for (int place = 0; place < 3; ++place) {
      std::vector<const std::byte*> in(3, reinterpret_cast<const std::byte*>(&one));
      in[static_cast<size_t>(place)] = reinterpret_cast<const std::byte*>(&odd_nan);
      double result = 0;
      combine(op, DType::kFloat64, in, 1, 1, reinterpret_cast<std::byte*>(&result));
      CHECK(std::memcmp(&result, &nan, 8) == 0, name_of(op), place);
      for (DType dtype : kDTypes) {
        Tensors narrow(3, tensor_of({1.0F}, dtype));
        narrow[static_cast<size_t>(place)] =
            tensor_of({-std::numeric_limits<float>::quiet_NaN()}, dtype);
        std::vector<const std::byte*> of_type;
        for (const auto& x : narrow) of_type.push_back(x.data());
        auto got = narrow[0];
        combine(op, dtype, of_type, 1, 1, got.data());
        CHECK(std::isnan(load_value(got.data(), dtype)), name_of(op), name_of(dtype), place);
      }
    }
  }
  const std::byte any{7}, none{0};
  std::byte got{};
  const std::byte* in[] = {&any, &none};
  combine(Combine::kSum, DType::kBool, in, 1, 1, &got);
  CHECK(got == std::byte{1});
}

TEST(ops_float64_in_rank_order) {
  EngineGroup engines = make_engines(Hosts(5, "a"), options_of(Reduction::kAuto, 9000, 3000, 30000),
                                     CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  run_ranks(5, [&](int rank) {
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    for (size_t n : {7, 4000}) {
      std::vector<std::vector<double>> all;
      for (uint64_t r = 0; r < 5; ++r) {
        Random random(r + n);
        all.emplace_back(n);
        for (double& x : all.back()) x = random.signed_unit();
      }
      std::vector<double> mine = all[static_cast<size_t>(rank)];
      const auto plan = engine.plan_all_reduce({{n, raw_codec()}}, DType::kFloat64);
      engine.run(*plan, mine.data(), mine.data(), true, patience());
      for (size_t i = 0; i < n; ++i) {
        const double sum = (((all[0][i] + all[1][i]) + all[2][i]) + all[3][i]) + all[4][i];
        CHECK(mine[i] == sum / 5, n, " ", i);
      }
    }
  });
}

TEST(ops_one_level) {
  for (size_t ranks = 1; ranks <= 9; ++ranks) {
    const CommunicatorKind kind = kKinds[ranks % 4];
    check_group(Hosts(ranks, "a"), kReductions[ranks % 4], kind, CommunicatorKind::kRelay, ranks);
  }
  for (Reduction reduction : kReductions) {
    for (CommunicatorKind kind : {CommunicatorKind::kInProcess, CommunicatorKind::kShm}) {
      check_group(Hosts(3, "a"), reduction, kind, CommunicatorKind::kRelay, 20);
    }
  }
}

TEST(ops_across_hosts) {
  uint64_t seed = 30;
  for (Reduction reduction : kReductions) {
    for (const Hosts& hosts : layouts()) {
      if (hosts.back() == "a") continue;
      const bool relay = ++seed % 2 == 0;
      check_group(hosts, reduction, relay ? CommunicatorKind::kShm : CommunicatorKind::kInProcess,
                  relay ? CommunicatorKind::kRelay : CommunicatorKind::kInProcess, seed);
    }
  }
  check_group({"a", "a", "b", "b", "c", "c", "c", "a", "b"}, Reduction::kAuto,
              CommunicatorKind::kInProcess, CommunicatorKind::kLazyRelay, 50);
}

TEST(ops_direct) {
  for (CommunicatorKind kind : {CommunicatorKind::kInProcess, CommunicatorKind::kRelay}) {
    check_group(Hosts(3, "a"), Reduction::kAuto, kind, CommunicatorKind::kRelay, 60, 1);
  }
}

TEST(ops_that_a_type_has_not) {
  EngineGroup engines = make_engines({"a", "a"}, options_of(Reduction::kAuto, 9000, 3000, 30000),
                                     CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  Engine& engine = *engines.ranks[0];
  const auto refused = [&](DType dtype, Combine op, const std::shared_ptr<const Codec>& codec) {
    return error_of<ConfigError>([&] { engine.plan_all_reduce({{10, codec}}, dtype, op); });
  };
  CHECK(contains(refused(DType::kFloat64, Combine::kBitOr, raw_codec()),
                 "all_reduce BOR of float64 values: operations on bits"));
  CHECK(contains(refused(DType::kComplex64, Combine::kMax, raw_codec()), "complex values"));
  CHECK(
      contains(refused(DType::kFloat8E5M2, Combine::kSum, raw_codec()), "allowed types: float32"));
  CHECK(
      contains(refused(DType::kFloat64, Combine::kSum, make_codec("maxmin")), "the codec maxmin"));
  CHECK(
      contains(refused(DType::kFloat32, Combine::kMax, make_codec("maxmin")), "the codec maxmin"));
  const std::string root =
      error_of<ConfigError>([&] { engine.plan_reduce(10, DType::kInt32, Combine::kSum, 2); });
  CHECK(contains(root, "root rank 2 is not in the group; allowed: 0 to 1"), root);
}

TEST(ops_mismatches_are_named) {
  struct Side {
    DType dtype;
    Combine combine;
    const char* text;
  };
  const Side sides[][2] = {
      {{DType::kInt32, Combine::kMax, "all_reduce MAX of 100 int32 values"},
       {DType::kInt32, Combine::kMin, "rank 1 runs all_reduce MIN of 100 int32 values"}},
      {{DType::kUInt64, Combine::kSum, "all_reduce SUM of 100 uint64 values"},
       {DType::kInt64, Combine::kSum, "all_reduce SUM of 100 int64 values"}},
      {{DType::kFloat32, Combine::kSum, "all_reduce SUM of 100 float32 values, exact"},
       {DType::kFloat32, Combine::kMax, "rank 1 runs all_reduce MAX of 100 float32 values"}},
  };
  for (const auto& pair : sides) {
    EngineGroup engines =
        make_engines(Hosts(3, "a"), options_of(Reduction::kAuto, 9000, 3000, 30000),
                     CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
    std::vector<std::string> texts(3);
    run_ranks(3, [&](int rank) {
      const Side& side = pair[rank == 1];
      Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
      std::vector<std::byte> data(100 * size_of(side.dtype));
      const auto plan = engine.plan_all_reduce({{100, raw_codec()}}, side.dtype, side.combine);
      try {
        engine.run(*plan, data.data(), data.data(), false, soon(20000));
      } catch (const Error& e) {
        texts[static_cast<size_t>(rank)] = e.what();
      }
    });
    CHECK(contains(texts[0], "ranks disagree on the collective"), texts[0]);
    for (const Side& side : pair) CHECK(contains(texts[0], side.text), texts[0]);
  }
}

TEST(ops_raise_where_sums_are_not_finite) {
  EngineOptions options = options_of(Reduction::kAuto, 9000, 3000, 30000);
  options.nonfinite = NonFinite::kRaise;
  EngineGroup engines =
      make_engines({"a", "a"}, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  run_ranks(2, [&](int rank) {
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    const auto run = [&](Combine op, double value) {
      std::vector<double> data(20, value);
      const auto plan = engine.plan_all_reduce({{10, raw_codec()}}, DType::kComplex128);
      const auto of_op = engine.plan_all_reduce({{20, raw_codec()}}, DType::kFloat64, op);
      engine.run(op == Combine::kSum ? *plan : *of_op, data.data(), data.data(), false, patience());
      return data[7];
    };
    const double inf = std::numeric_limits<double>::infinity();
    error_of<NonFiniteError>([&] { run(Combine::kSum, rank == 0 ? inf : 1); });
    error_of<NonFiniteError>([&] { run(Combine::kSum, 1e308); });
    CHECK(run(Combine::kMin, rank == 0 ? inf : 1) == 1);
    CHECK(run(Combine::kSum, 2) == 4);
  });
}

}  // namespace cgx::native
