// Moves of the engine: every rank gets the values that were meant for it, whatever the operation,
// the hosts, the communicators, the type and the sizes.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "check.h"
#include "data.h"
#include "groups.h"
#include "maxmin_codec.h"

namespace cgx::native {
namespace {

using Bytes = std::vector<std::byte>;

// A byte that names its place: of the values that `from` gives to `to`.
std::byte sign(int from, int to, size_t at) {
  return static_cast<std::byte>(
      (at * 31 + static_cast<size_t>(from) * 57 + static_cast<size_t>(to) * 13 + at / 256) & 0xff);
}

// `to` -1: the same for all.
Bytes values_for(int from, int to, size_t bytes) {
  Bytes values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = sign(from, to, i);
  return values;
}

constexpr Operation kMoves[] = {Operation::kAllGather, Operation::kGather, Operation::kScatter,
                                Operation::kAllToAll, Operation::kBroadcast};

// Segments of a few hundred bytes, so that most pieces take several rounds.
EngineOptions small_messages(bool checksum) {
  EngineOptions options = options_of(Reduction::kAuto, 4000, 700, 9000);
  options.checksum = checksum;
  return options;
}

// Values of the piece from one rank to another one.
using SizeOf = std::function<size_t(int from, int to)>;

struct Run {
  Operation operation;
  DType dtype = DType::kFloat32;
  int root = 0;
  SizeOf size;
};

// One rank's memory: what it gives, and what it gets.
struct Memory {
  std::vector<Bytes> given, got;
};

Move move_of(const Run& run, const Engine& engine, Memory& memory) {
  const int ranks = engine.size(), rank = engine.rank();
  const bool rooted = has_root(run.operation);
  const bool alike = run.operation == Operation::kAllGather;
  Move move = make_move({run.operation, run.dtype, rooted ? run.size(run.root, run.root) : 0,
                         rooted ? run.root : -1, raw_codec()},
                        engine.topology());
  move.alike = alike;
  memory.given.resize(static_cast<size_t>(ranks));
  memory.got.resize(static_cast<size_t>(ranks));
  const auto each = size_of(run.dtype);
  if (run.operation == Operation::kBroadcast) {
    const size_t n = run.size(run.root, run.root);
    Bytes& mine = memory.got[static_cast<size_t>(run.root)];
    mine = rank == run.root ? values_for(run.root, -1, n * each) : Bytes(n * each);
    (rank == run.root ? move.gives : move.gets)[static_cast<size_t>(run.root)] = {mine.data(), n};
    return move;
  }
  for (int peer = 0; peer < ranks; ++peer) {
    const auto at = static_cast<size_t>(peer);
    const bool gives = run.operation == Operation::kGather    ? peer == run.root
                       : run.operation == Operation::kScatter ? rank == run.root
                                                              : true;
    const bool gets = run.operation == Operation::kGather    ? rank == run.root
                      : run.operation == Operation::kScatter ? peer == run.root
                                                             : true;
    if (gives) {
      const size_t n = run.size(rank, peer);
      const size_t first = alike && peer > 0 ? 0 : at;
      if (!alike || peer == 0) memory.given[at] = values_for(rank, alike ? -1 : peer, n * each);
      move.gives[at] = {memory.given[first].data(), n};
    }
    if (gets) {
      const size_t n = run.size(peer, rank);
      memory.got[at] = Bytes(n * each);
      move.gets[at] = {memory.got[at].data(), n};
    }
  }
  return move;
}

void check_got(const Run& run, int ranks, int rank, const Memory& memory) {
  const auto each = size_of(run.dtype);
  for (int from = 0; from < ranks; ++from) {
    const auto at = static_cast<size_t>(from);
    if (run.operation == Operation::kBroadcast) {
      if (from != run.root) continue;
      CHECK(memory.got[at] == values_for(from, -1, run.size(from, from) * each));
      continue;
    }
    if (run.operation == Operation::kGather && rank != run.root) continue;
    if (run.operation == Operation::kScatter && from != run.root) continue;
    const int to = run.operation == Operation::kAllGather ? -1 : rank;
    CHECK(memory.got[at] == values_for(from, to, run.size(from, rank) * each));
  }
}

void run_on(EngineGroup& engines, const std::vector<Run>& runs) {
  run_ranks(static_cast<int>(engines.size()), [&](int rank) {
    Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
    for (const Run& run : runs) {
      Memory memory;
      const Move move = move_of(run, engine, memory);
      engine.run_move(move, patience());
      check_got(run, engine.size(), rank, memory);
    }
    const Move meet =
        make_move({Operation::kBarrier, DType::kUInt8, 0, -1, raw_codec()}, engine.topology());
    engine.run_move(meet, patience());
  });
}

// Every operation, with pieces of all sizes around the borders of segments, equal and not.
std::vector<Run> runs_for(int ranks, uint64_t seed) {
  Random random(seed);
  constexpr DType kTypes[] = {DType::kUInt8,       DType::kBool,       DType::kFloat16,
                              DType::kFloat32,     DType::kComplex128, DType::kInt64,
                              DType::kFloat8E4M3FN};
  std::vector<Run> runs;
  for (Operation operation : kMoves) {
    for (int i = 0; i < 6; ++i) {
      const size_t n = random(3) == 0 ? random(5) : random(700);
      const bool uneven = random(2) == 0;
      const uint64_t key = random(1000);
      runs.push_back({operation, kTypes[random(7)], static_cast<int>(random(ranks)),
                      [=](int from, int to) -> size_t {
                        if (!uneven || operation == Operation::kBroadcast) return n;
                        const auto a = static_cast<uint64_t>(from), b = static_cast<uint64_t>(to);
                        const uint64_t to_all = operation == Operation::kAllGather ? 0 : b;
                        return (key + a * 97 + to_all * 41) % 5 == 0 ? 0
                                                                     : (key + a * 7 + to_all) % 300;
                      }});
    }
  }
  return runs;
}

TEST(moves_reach_the_right_rank) {
  uint64_t seed = 1;
  for (const Hosts& hosts : layouts()) {
    const bool two_sides = Topology(hosts).host_count() > 1;
    for (CommunicatorKind kind : kKinds) {
      if (kind == CommunicatorKind::kShm && two_sides) continue;  // carries nothing between hosts
      const CommunicatorKind inside = two_sides ? CommunicatorKind::kShm : kind;
      EngineGroup engines = make_engines(hosts, small_messages(seed % 3 == 0), inside, kind);
      run_on(engines, runs_for(static_cast<int>(hosts.size()), seed++));
    }
  }
}

TEST(moves_of_all_small_sizes_and_up_to_nine_ranks) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    EngineGroup engines =
        make_engines(Hosts(static_cast<size_t>(ranks), "a"), small_messages(false),
                     CommunicatorKind::kInProcess, CommunicatorKind::kInProcess);
    std::vector<Run> runs;
    for (size_t n = 0; n <= 400; n += ranks < 4 ? 1 : 13) {
      const Operation operation = kMoves[n % 5];
      runs.push_back({operation, n % 2 == 0 ? DType::kUInt8 : DType::kInt32,
                      static_cast<int>(n) % ranks, [n](int, int) { return n; }});
    }
    run_on(engines, runs);
  }
}

// Long exact values go from memory to memory over a relay.
TEST(long_moves_travel_directly) {
  for (const Hosts& hosts : {Hosts{"a", "b"}, Hosts{"a", "b", "c"}, Hosts{"a", "a", "b", "b"},
                             Hosts{"a", "b", "b", "b"}}) {
    EngineOptions options = options_of(Reduction::kAuto, 256 << 10, 64 << 10, 512 << 10);
    EngineGroup engines =
        make_engines(hosts, options, CommunicatorKind::kShm, CommunicatorKind::kRelay);
    std::vector<Run> runs;
    for (Operation operation : kMoves) {
      for (size_t n : {kDirectFrom / 4 - 1, kDirectFrom / 4, kDirectChunk / 4 + 5}) {
        runs.push_back({operation, DType::kFloat32, static_cast<int>(hosts.size()) - 1,
                        [n](int, int) { return n; }});
      }
    }
    run_on(engines, runs);
  }
}

// Two ranks that do not agree on a size both learn it, with both sides.
TEST(sizes_that_differ_are_an_error) {
  for (const Hosts& hosts : {Hosts{"a", "a", "a"}, Hosts{"a", "b", "c"}, Hosts{"a", "a", "b"}}) {
    const bool two_sides = Topology(hosts).host_count() > 1;
    for (Operation operation : kMoves) {
      for (const auto& [right, wrong] :
           {std::pair<size_t, size_t>{100, 101}, {2000, 100}, {0, 5}}) {
        EngineGroup engines =
            make_engines(hosts, small_messages(false), CommunicatorKind::kShm,
                         two_sides ? CommunicatorKind::kRelay : CommunicatorKind::kShm);
        std::vector<std::string> errors(hosts.size());
        run_ranks(static_cast<int>(hosts.size()), [&](int rank) {
          Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
          const size_t n = rank == 1 ? wrong : right;
          Memory memory;
          const Move move =
              move_of({operation, DType::kInt32, 0, [n](int, int) { return n; }}, engine, memory);
          try {
            engine.run_move(move, soon(20000));
            // A rank that has done its part learns it in the next call.
            Memory again;
            engine.run_move(move_of({Operation::kAllToAll, DType::kInt32, 0,
                                     [](int, int) { return size_t{1}; }},
                                    engine, again),
                            soon(20000));
          } catch (const Error& error) {
            errors[static_cast<size_t>(rank)] = error.what();
          }
        });
        for (const std::string& error : errors) {
          CHECK(error.find("disagree") != std::string::npos);
          CHECK(error.find("of " + std::to_string(right) + " int32") != std::string::npos);
        }
      }
    }
  }
}

TEST(encoded_moves_round_once) {
  const auto codec = make_maxmin({4, 64, Rounding::kNearest, false, 5});
  for (const Hosts& hosts : layouts()) {
    const bool two_sides = Topology(hosts).host_count() > 1;
    const int ranks = static_cast<int>(hosts.size());
    if (ranks == 1) continue;
    EngineGroup engines =
        make_engines(hosts, small_messages(false), CommunicatorKind::kShm,
                     two_sides ? CommunicatorKind::kRelay : CommunicatorKind::kShm);
    for (size_t n : {size_t{1}, size_t{64}, size_t{1000}, size_t{5000}}) {
      std::vector<std::vector<float>> input;
      for (int rank = 0; rank < ranks; ++rank) {
        input.push_back(
            values(n * static_cast<size_t>(ranks), 0, n * 16 + static_cast<size_t>(rank)));
      }
      std::vector<std::vector<float>> sent(static_cast<size_t>(ranks)), got(sent.size());
      run_ranks(ranks, [&](int rank) {
        const auto me = static_cast<size_t>(rank);
        Engine& engine = *engines.ranks[me];
        // Broadcast of rank 0's values.
        std::vector<float> x(input[me].begin(), input[me].begin() + static_cast<ptrdiff_t>(n));
        Move cast =
            make_move({Operation::kBroadcast, DType::kFloat32, n, 0, codec}, engine.topology());
        (rank == 0 ? cast.gives : cast.gets)[0] = {reinterpret_cast<std::byte*>(x.data()), n};
        engine.run_move(cast, patience());
        sent[me] = x;
        // All-to-all of n values for each rank.
        std::vector<float> from(input[me].begin(), input[me].end()), to(from.size());
        Move all = make_move({Operation::kAllToAll, DType::kFloat32, from.size(), -1, codec},
                             engine.topology());
        for (size_t p = 0; p < sent.size(); ++p) {
          all.gives[p] = {reinterpret_cast<std::byte*>(from.data() + p * n), n, p * n};
          all.gets[p] = {reinterpret_cast<std::byte*>(to.data() + p * n), n, p * n};
        }
        engine.run_move(all, patience());
        got[me] = to;
      });
      const auto coded = [&](const float* x) {
        std::vector<std::byte> bytes(codec->encoded_bytes(n, DType::kFloat32));
        std::vector<float> y(n);
        codec->begin({}, 0, n, bytes.data());
        codec->encode(x, DType::kFloat32, DType::kFloat32, n, 0, n, {}, 0, bytes.data());
        codec->decode(bytes.data(), DType::kFloat32, n, 0, n, y.data(), false);
        return y;
      };
      const std::vector<float> first(input[0].begin(), input[0].end());
      for (const auto& x : sent) CHECK(x == coded(first.data()));
      for (size_t to = 0; to < got.size(); ++to) {
        for (size_t from = 0; from < got.size(); ++from) {
          const std::vector<float> whole(input[from].begin(), input[from].end());
          const std::vector<float> want =
              from == to ? std::vector<float>(whole.begin() + static_cast<ptrdiff_t>(to * n),
                                              whole.begin() + static_cast<ptrdiff_t>((to + 1) * n))
                         : coded(whole.data() + to * n);
          CHECK(std::equal(want.begin(), want.end(),
                           got[to].begin() + static_cast<ptrdiff_t>(from * n)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace cgx::native
