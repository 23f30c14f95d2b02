// The headers that ranks really send, for every family, operation, algorithm and type, against
// tests/reduce/golden_headers.json, line by line. tests/reduce/test_golden_headers.py reads the same
// file by docs/wire_format.md alone.
//
//     CGX_TEST_WRITE_GOLDEN=1 make -C tests/native SANITIZE= ONLY=golden_headers run
//
// adds the lines that the file lacks, for a new family. Lines that are there stay: other bytes are
// another version of the wire format, for which the file is removed and written anew.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "check.h"
#include "codec/families/list.h"
#include "data.h"
#include "groups.h"
#include "recorder.h"
#include "reduce/plan/header.h"

namespace cgx::native {
namespace {

// Beside the corpus of the fuzzers, whose place the build names.
std::filesystem::path golden_file() {
  return std::filesystem::path(CGX_FUZZ_CORPUS).parent_path().parent_path() / "reduce" /
         "golden_headers.json";
}

struct Case {
  Operation operation = Operation::kAllReduce;
  Reduction reduction = Reduction::kOneShot;
  std::vector<std::string> hosts = {"a", "a", "a"};
  bool average = false;
  bool direct = false;  // of exact values only
  bool nan = false;     // one in the tensor of the recorded rank
  bool checksum = false;
  Combine combine = Combine::kSum;
};

constexpr int kRoot = 1;  // of reduces

const std::vector<std::string> kTwoHosts = {"a", "a", "b", "b"};

// New ones go to the end: the sequence numbers count them.
const Case kCases[] = {
    {},
    {.average = true},
    {.nan = true},
    {.checksum = true},
    {.reduction = Reduction::kScatterReduceAllGather},
    {.reduction = Reduction::kRing},
    {.reduction = Reduction::kAuto, .direct = true},
    {.operation = Operation::kReduceScatter},
    {.operation = Operation::kAllGather},
    {.hosts = kTwoHosts},
    {.reduction = Reduction::kScatterReduceAllGather, .hosts = kTwoHosts, .average = true},
    {.reduction = Reduction::kRing, .hosts = {"b", "a", "c"}},
    {.operation = Operation::kReduceScatter, .hosts = kTwoHosts},
    {.operation = Operation::kAllGather, .hosts = kTwoHosts},
};

// Of exact values alone. One all-reduce for each type that codecs do not take, with changing ops;
// then of int32.
constexpr Combine kOps[] = {Combine::kSum,    Combine::kMin,   Combine::kMax,   Combine::kProduct,
                            Combine::kBitAnd, Combine::kBitOr, Combine::kBitXor};
const Case kExactCases[] = {
    {.operation = Operation::kReduce, .combine = Combine::kMax},
    {.operation = Operation::kReduce, .reduction = Reduction::kScatterReduceAllGather},
    {.operation = Operation::kReduce, .hosts = kTwoHosts, .average = true},
    {.operation = Operation::kReduceScatter, .combine = Combine::kMin},
    {.operation = Operation::kReduceScatter, .hosts = kTwoHosts, .combine = Combine::kBitXor},
};

// More than one round, and what is left of one.
constexpr size_t kValues = 2503, kExact = 5, kShard = 700;

std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (std::byte b : bytes) {
    for (int digit : {static_cast<int>(b) >> 4, static_cast<int>(b) & 15}) {
      text += "0123456789abcdef"[digit];
    }
  }
  return text;
}

std::string hex(uint64_t number) {
  std::vector<std::byte> bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(std::byte(number >> shift & 0xff));
  return hex(bytes);
}

template <typename List, typename Text>
std::string list(const List& items, const Text& text) {
  std::string joined;
  for (const auto& item : items) joined += (joined.empty() ? "" : ", ") + text(item);
  return "[" + joined + "]";
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string text_of(const Layer& layer) {
  const CodecConfig& config = layer.codec->config();
  std::string numbers;
  for (size_t i = 0; i < config.numbers().size(); ++i) {
    const Parameter& p = config.family().parameters[i];
    // As in the hash: parameters that came later are left out at their defaults.
    if (p.later && config.numbers()[i] == number_of(p, p.fallback)) continue;
    numbers += str_of(numbers.empty() ? "" : ", ", quoted(p.name), ": ", config.numbers()[i]);
  }
  return str_of("[", layer.count, ", ", quoted(config.family().name), ", {", numbers, "}]");
}

// Bytes of the message, and its header.
std::string text_of(const Posted& message) {
  return str_of("[", message.bytes, ", ", quoted(hex(message.header)), "]");
}

// What the recorded rank sent over one communicator, as a line of the file.
std::string line_of(const Case& c, const Plan& plan, const char* link, uint64_t sequence,
                    const Recorded& recorded) {
  const Layer* compressed = plan.first_compressed();
  const auto chunks = [](const Shard& shard) {
    return list(shard.chunks, [](const Chunk& chunk) { return std::to_string(chunk.values); });
  };
  std::vector<std::string> flags;
  if (c.average) flags.push_back("average");
  if (c.nan) flags.push_back("nan");
  if (c.checksum) flags.push_back("checksum");
  std::string line = str_of("{\"operation\": ", quoted(name_of(plan.operation)),
                            ", \"algorithm\": ", quoted(name_of(plan.algorithm)),
                            ", \"dtype\": ", quoted(name_of(plan.dtype)));
  line += str_of(", \"hosts\": ", list(c.hosts, quoted), ", \"link\": ", quoted(link),
                 ", \"sequence\": ", sequence, ", \"with\": ", list(flags, quoted));
  if (plan.combine != Combine::kSum) line += str_of(", \"op\": ", quoted(name_of(plan.combine)));
  if (plan.root >= 0) line += str_of(", \"root\": ", plan.root);
  line += str_of(", \"layers\": ", list(plan.layers, [](const Layer& l) { return text_of(l); }),
                 ", \"rounds\": ", plan.rounds.size(),
                 ", \"chunks\": ", list(plan.rounds.at(0).shards, chunks));
  line += str_of(
      ", \"config_hash\": ", compressed ? quoted(hex(compressed->codec->config().hash())) : "null",
      ", \"plan_hash\": ", quoted(hex(plan.hash)));
  line += str_of(", \"first\": ", text_of(recorded.first));
  if (recorded.last != recorded.first) line += str_of(", \"last\": ", text_of(recorded.last));
  line += "}";
  return line;
}

// Of each group: the last of a single host; on two hosts a member of the team that has values in
// round 0.
constexpr int kRecorded = 2;

// Runs the case on ranks that are threads.
void add_lines(const Case& c, const std::shared_ptr<const Codec>& codec, DType dtype,
               uint64_t sequence, std::vector<std::string>& lines) {
  const int size = static_cast<int>(c.hosts.size());
  EngineOptions options = options_of(c.reduction, 6000, 3000, 30000);
  options.checksum = c.checksum;
  options.nonfinite = c.nan ? NonFinite::kRaise : NonFinite::kPropagate;
  if (c.direct) {
    options.direct_from = 1;
    options.direct_chunk = 1024;
  }
  Recorded inside, across;
  EngineGroup group = make_engines(
      c.hosts, options, c.direct ? CommunicatorKind::kRelay : CommunicatorKind::kInProcess,
      CommunicatorKind::kInProcess, [&](std::unique_ptr<Communicator> real, int rank, bool cross) {
        if (rank != kRecorded) return real;
        return std::unique_ptr<Communicator>(
            std::make_unique<Recorder>(std::move(real), cross ? across : inside));
      });
  std::shared_ptr<const Plan> plan;
  run_ranks(size, [&](int rank) {
    Engine& engine = *group.ranks[static_cast<size_t>(rank)];
    engine.set_sequence(sequence);
    const auto mine =
        c.operation == Operation::kAllReduce
            ? engine.plan_all_reduce({{kValues, codec}, {kExact, raw_codec()}}, dtype, c.combine)
        : c.operation == Operation::kReduce
            ? engine.plan_reduce(kValues, dtype, c.combine, kRoot)
            : engine.plan_shards(c.operation, kShard, codec, dtype, c.combine);
    auto x = values(mine->values, 0, sequence + static_cast<uint64_t>(rank));
    if (c.nan && rank == kRecorded) x[0] = std::nanf("");
    std::vector<std::byte> input(mine->values * size_of(dtype));
    if (kComputed.has(dtype)) input = tensor_of(x, dtype);
    auto output = input;
    const bool in_place = c.operation == Operation::kAllReduce;
    const auto run = [&] {
      engine.run(*mine, input.data(), in_place ? input.data() : output.data(), c.average,
                 patience());
    };
    if (c.nan) {
      error_of<NonFiniteError>(run);
    } else {
      run();
    }
    if (rank == kRecorded) plan = mine;
  });
  if (inside.first.bytes > 0) {
    lines.push_back(
        line_of(c, *plan, plan->two_levels ? "inside hosts" : "all ranks", sequence, inside));
  }
  if (across.first.bytes > 0) lines.push_back(line_of(c, *plan, "across hosts", sequence, across));
}

// Whether the family takes these parameters together.
bool is_allowed(const CodecConfig& config) {
  try {
    make_codec(config);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

// The defaults, and each parameter at the end of what goes with the others' defaults.
std::vector<CodecConfig> configs(const Family& family) {
  std::vector<CodecConfig> all = {CodecConfig(family)};
  for (const Parameter& p : family.parameters) {
    int64_t last = p.kind == Parameter::Kind::kInteger ? p.high
                   : p.kind == Parameter::Kind::kChoice
                       ? static_cast<int64_t>(split(p.choices).size()) - 1
                       : 1;
    CodecConfig config(family);
    while (!is_allowed(config.set(p.name, last))) --last;
    if (!(config == all.front())) all.push_back(config);
  }
  return all;
}

std::vector<std::string> all_lines() {
  // Those of the list: other tests add some of their own.
  const Family* listed[] = {
#define CGX_FAMILY(name) &name##_family(),
      CGX_FAMILIES(CGX_FAMILY)
#undef CGX_FAMILY
  };
  std::vector<std::string> lines;
  for (const Family* family : listed) {
    const auto all = configs(*family);
    uint64_t sequence = 0;
    for (const Case& c : kCases) {
      const auto codec = make_codec(all.front());
      for (DType dtype : kDTypes) {
        if (!c.direct || codec == raw_codec()) add_lines(c, codec, dtype, sequence, lines);
        ++sequence;
      }
    }
    for (size_t i = 1; i < all.size(); ++i) {
      add_lines({}, make_codec(all[i]), DType::kFloat32, uint64_t{1} << 40, lines);
    }
  }
  uint64_t sequence = 0;
  for (int number = 3; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (!kReduced.has(dtype)) continue;
    const DTypeKind kind = kind_of(dtype);
    const size_t ops = kind == DTypeKind::kComplex ? 1 : kind == DTypeKind::kFloat ? 4 : 7;
    add_lines({.combine = kOps[sequence % ops]}, raw_codec(), dtype, sequence, lines);
    ++sequence;
  }
  for (const Case& c : kExactCases) {
    add_lines(c, raw_codec(), DType::kInt32, sequence++, lines);
    if (c.operation == Operation::kReduce) {
      add_lines(c, raw_codec(), DType::kFloat32, sequence++, lines);
    }
  }
  return lines;
}

std::vector<std::string> committed_lines() {
  std::vector<std::string> lines;
  std::ifstream file(golden_file());
  for (std::string line; std::getline(file, line);) {
    if (line.size() < 3) continue;  // brackets
    if (line.back() == ',') line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

TEST(golden_headers) {
  const auto lines = all_lines();
  const auto before = committed_lines();
  const std::set<std::string> made(lines.begin(), lines.end());
  for (const std::string& line : before) {
    CHECK(made.count(line) == 1, "no rank sends this any more: ", line);
  }
  const char* write = std::getenv("CGX_TEST_WRITE_GOLDEN");
  if (write != nullptr && std::string(write) == "1") {
    std::ofstream file(golden_file());
    for (size_t i = 0; i < lines.size(); ++i) file << (i == 0 ? "[\n" : ",\n") << lines[i];
    file << "\n]\n";
    CHECK(file.good(), golden_file().string());
    return;
  }
  const std::set<std::string> known(before.begin(), before.end());
  for (const std::string& line : lines) {
    CHECK(
        known.count(line) == 1, golden_file().string(), " lacks ", line,
        "; CGX_TEST_WRITE_GOLDEN=1 make -C tests/native SANITIZE= ONLY=golden_headers run adds it");
  }
}

}  // namespace cgx::native
